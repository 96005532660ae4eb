"""Makes IR values: the primitives that lowering rules are written with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cuda_agent.agent.playbook.affine import Shape
from cuda_agent.agent.playbook.ir import (
    CType,
    Gemm,
    Iota,
    Pointwise,
    Reduce,
    Reshape,
    Scalar,
    Unsupported,
    Value,
    View,
    ctype_of,
)

Number = float | int | bool
Operand = Value | Number
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
TESTS = frozenset({"isnan", "isinf", "isfinite", "not", "and", "or", "xor"})
_RANK = {CType.B: 0, CType.I: 1, CType.F: 2}


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Shape that operands of these shapes broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


def widest(values: Sequence[Value]) -> CType:
    """Common type of operands."""
    return max((ctype_of(v.dtype) for v in values), key=lambda t: _RANK[t])


def scalar(number: Number, dtype: str = "") -> Scalar:
    """A number known from the graph."""
    natural = "bool" if isinstance(number, bool) else "int64" if isinstance(number, int) else "float32"
    return Scalar((), dtype or natural, number)


def as_value(operand: Operand) -> Value:
    """The operand itself, or its number as a value."""
    return operand if isinstance(operand, Value) else scalar(operand)


def pointwise(op: str, *operands: Operand, dtype: str = "float32", compute: CType | None = None) -> Value:
    """``op`` of broadcast operands; comparisons and tests are bool whatever ``dtype`` says."""
    values = tuple(as_value(o) for o in operands)
    shape = broadcast_shape([v.shape for v in values])
    if op in COMPARISONS or op in ("isnan", "isinf", "isfinite"):
        return Pointwise(shape, "bool", op, values, compute or widest(values))
    if op in TESTS:
        return Pointwise(shape, "bool", op, values, CType.B)
    return Pointwise(shape, dtype, op, values, compute or ctype_of(dtype))


def cast(value: Value, dtype: str) -> Value:
    """``value`` converted; float to float keeps full precision inside a kernel."""
    if value.dtype == dtype:
        return value
    return Pointwise(value.shape, dtype, "cast", (value,), ctype_of(dtype))


def reduce(kind: str, value: Value, dims: Sequence[int]) -> Value:
    """Reduction that keeps its dimensions, size one."""
    rank = len(value.shape)
    chosen = tuple(sorted({d % rank for d in dims})) if rank else ()
    if not chosen:
        return value
    if prod(value.shape) == 0:
        raise Unsupported("a reduction over an empty tensor is not covered by the playbook")
    shape = tuple(1 if k in chosen else n for k, n in enumerate(value.shape))
    return Reduce(shape, value.dtype, kind, value, chosen)


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """Same order, other shape; one extent may be -1."""
    total, known = prod(value.shape), prod(n for n in shape if n != -1)
    final = tuple(total // max(known, 1) if n == -1 else n for n in shape)
    if final == value.shape:
        return value
    if isinstance(value, Reshape):
        value = value.arg
    return value if value.shape == final else Reshape(final, value.dtype, value)


def permute(value: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    rank = len(value.shape)
    order = [d % rank for d in dims]
    shape = tuple(value.shape[d] for d in order)
    moved = [d for d in order if value.shape[d] != 1]
    if moved == sorted(moved):
        return reshape(value, shape)
    index = tuple((0, ((order.index(k), 1),)) for k in range(rank))
    return View(shape, value.dtype, value, index)


def expand(value: Value, shape: Sequence[int]) -> Value:
    """Size-one dimensions repeated; -1 keeps an extent."""
    lead = len(shape) - len(value.shape)
    final = tuple(value.shape[k - lead] if n == -1 else n for k, n in enumerate(shape))
    if final == value.shape:
        return value
    index = tuple(
        (0, ()) if n == 1 and final[k + lead] != 1 else (0, ((k + lead, 1),))
        for k, n in enumerate(value.shape)
    )
    return View(final, value.dtype, value, index)


def slice_(value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """``value[..., start:stop:step]`` along ``dim``."""
    rank = len(value.shape)
    dim %= rank
    extent = value.shape[dim]
    start, stop, step = slice(start, stop, step).indices(extent)
    length = len(range(start, stop, step))
    if (start, length, step) == (0, extent, 1):
        return value
    shape = tuple(length if k == dim else n for k, n in enumerate(value.shape))
    index = tuple((start, ((k, step),)) if k == dim else (0, ((k, 1),)) for k in range(rank))
    return View(shape, value.dtype, value, index)


def select(value: Value, dim: int, position: int) -> Value:
    """``value[..., position, ...]``: the dimension goes."""
    rank = len(value.shape)
    dim %= rank
    position %= value.shape[dim]
    shape = tuple(n for k, n in enumerate(value.shape) if k != dim)
    index = tuple((position, ()) if k == dim else (0, ((k - (k > dim), 1),)) for k in range(rank))
    return View(shape, value.dtype, value, index)


def flip(value: Value, dims: Sequence[int]) -> Value:
    """Dimensions backwards."""
    chosen = {d % len(value.shape) for d in dims}
    index = tuple((n - 1, ((k, -1),)) if k in chosen else (0, ((k, 1),)) for k, n in enumerate(value.shape))
    return View(value.shape, value.dtype, value, index)


def squeeze(value: Value, dims: Sequence[int] | None = None) -> Value:
    """Size-one dimensions removed (all, or those named)."""
    rank = len(value.shape)
    chosen = range(rank) if dims is None else [d % rank for d in dims] if rank else []
    return reshape(value, [n for k, n in enumerate(value.shape) if not (k in chosen and n == 1)])


def unsqueeze(value: Value, dim: int) -> Value:
    """A size-one dimension put in."""
    shape = list(value.shape)
    shape.insert(dim % (len(shape) + 1), 1)
    return reshape(value, shape)


def iota(length: int, start: int = 0, step: int = 1) -> Value:
    """int64 ``start + step * k``."""
    return Iota((length,), "int64", start, step)


def gemm(a: Value, b: Value) -> Value:
    """``a @ b`` of [batch, m, k] and [batch, k, n]."""
    return Gemm((a.shape[0], a.shape[1], b.shape[2]), a.dtype, a, b)
