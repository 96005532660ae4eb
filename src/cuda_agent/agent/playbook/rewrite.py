"""Rewrites of a lowered program that a backend asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from cuda_agent.agent.playbook import builder as b
from cuda_agent.agent.playbook.ir import (
    CType,
    Gemm,
    Pointwise,
    Program,
    Reduce,
    Reshape,
    Value,
    View,
    ctype_of,
    topological,
)

ROWS_WANTED = 1024
"""Independent rows that fill a GPU: a few blocks for each of 100 to 150 multiprocessors."""
FEW_ROWS, LONG_ROW, LARGE = 264, 16_384, 1 << 17
"""Split when there are fewer rows, each longer, and more elements in all than these."""


def widened(program: Program) -> Program:
    """The program with every matrix product in float32 (the cpu library has no other)."""
    made: dict[int, Value] = {}

    def wide(value: Value) -> Value:
        if isinstance(value, View | Reshape):  # the cast goes below: a view of it is still free
            return replace(value, dtype="float32", arg=wide(value.arg))
        if value.dtype == "float32":
            return value
        key = id(value)
        if key not in casts:
            casts[key] = Pointwise(value.shape, "float32", "cast", (value,), CType.F)
        return casts[key]

    casts: dict[int, Value] = {}
    for value in topological(program.outputs):
        fresh = _with_operands(value, made)
        if isinstance(fresh, Gemm) and fresh.dtype != "float32":
            fresh = Gemm(fresh.shape, "float32", wide(fresh.a), wide(fresh.b))
        made[id(value)] = fresh
    outputs = [made[id(v)] for v in program.outputs]
    pairs = zip(outputs, program.outputs, strict=True)
    return Program(program.sources, [_of_type(new, old.dtype) for new, old in pairs])


def _of_type(value: Value, dtype: str) -> Value:
    if value.dtype == dtype:
        return value
    return Pointwise(value.shape, dtype, "cast", (value,), ctype_of(dtype))


def _with_operands(value: Value, made: dict[int, Value]) -> Value:
    if isinstance(value, Pointwise):
        return replace(value, args=tuple(made[id(a)] for a in value.args))
    if isinstance(value, View | Reshape):
        arg = made[id(value.arg)]
        return replace(value, arg=arg, dtype=arg.dtype)
    if isinstance(value, Reduce):
        return replace(value, arg=made[id(value.arg)])
    if isinstance(value, Gemm):
        return replace(value, a=made[id(value.a)], b=made[id(value.b)])
    return value


def split_long_reductions(program: Program) -> Program:
    """The program with reductions of few long rows done in two steps, so that every processor works.

    The largest reduced dimension n becomes (s, q) with s * q <= n; the q part is reduced first, then the s
    partial results and the remainder. Views only: nothing is copied.
    """
    made: dict[int, Value] = {}
    for value in topological(program.outputs):
        fresh = _with_operands(value, made)
        made[id(value)] = _split(fresh) if isinstance(fresh, Reduce) else fresh
    return Program(program.sources, [made[id(v)] for v in program.outputs])


def _split(value: Reduce) -> Value:
    arg = value.arg
    rows, length = prod(value.shape), prod(arg.shape[d] for d in value.dims)
    # Reductions over an outer dimension walk the inner one with neighbouring lanes, 128 to a block.
    columns = len(arg.shape) - 1 not in value.dims and value.shape[-1] > 1
    blocks, long = (rows // 128, 512) if columns else (rows, LONG_ROW)
    if blocks >= FEW_ROWS or length < long or rows * length < LARGE:
        return value
    dim, parts, size = _parts(value, ROWS_WANTED // max(blocks, 1))
    if parts < 2:
        return value
    extent = arg.shape[dim]
    inner = [d + (d >= dim) for d in value.dims]  # past the new axis of parts, which stays for now
    partial = b.reduce(value.kind, _blocked(arg, dim, parts, size), inner)
    whole = b.reshape(b.reduce(value.kind, partial, [dim]), value.shape)
    if parts * size == extent:
        return whole
    rest = b.reduce(value.kind, b.slice_(arg, dim, parts * size, extent), value.dims)
    return _JOIN[value.kind](whole, rest)


def _parts(value: Reduce, wanted: int) -> tuple[int, int, int]:
    """(dimension, parts, size): about ``wanted`` parts, without a remainder where that can be."""
    arg = value.arg
    dims = sorted(value.dims, key=lambda d: -arg.shape[d])
    for dim in dims:
        extent = arg.shape[dim]
        # A split innermost dimension keeps the parts aligned for vector loads.
        unit = 8 if dim == len(arg.shape) - 1 and extent % 8 == 0 else 1
        for parts in range(min(wanted, extent // 2), max(wanted // 4, 1), -1):
            if extent % (parts * unit) == 0:
                return dim, parts, extent // parts
    dim = dims[0]
    extent = arg.shape[dim]
    size = max(2, -(-extent // max(wanted, 1)))
    if dim == len(arg.shape) - 1 and size > 8:
        size -= size % 8
    return dim, extent // size, size


def _blocked(value: Value, dim: int, parts: int, size: int) -> Value:
    """Dimension ``dim`` as (parts, size); what does not fit is left out."""
    shape = (*value.shape[:dim], parts, size, *value.shape[dim + 1 :])
    index = tuple(
        (0, ((dim, size), (dim + 1, 1))) if k == dim else (0, ((k + (k > dim), 1),))
        for k in range(len(value.shape))
    )
    return View(shape, value.dtype, value, index)


def _joined(op: str) -> Callable[[Value, Value], Value]:
    return lambda x, y: b.pointwise(op, x, y, dtype=x.dtype)


_JOIN = {"sum": _joined("add"), "prod": _joined("mul"), "max": _joined("max"), "min": _joined("min")}
