"""From captured operators to IR: the driver, views and matrix products."""

# Every rule takes (op, args), whether it needs both or not.
# ruff: noqa: ARG001, ARG005
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from cuda_agent.agent.playbook import builder as b
from cuda_agent.agent.playbook import lower_pointwise, lower_reduce
from cuda_agent.agent.playbook.graph import Case, GraphOp, Ref
from cuda_agent.agent.playbook.ir import FLOATS, Program, Source, Unsupported, Value

Rule = Callable[[GraphOp, tuple[Any, ...]], Any]


def lower(case: Case) -> Program:
    """Lower one input case.

    Raises:
        Unsupported: names the first operator that is not covered.
    """
    program = Program()
    values: dict[str, Any] = {}
    for entry in case.inputs:
        if entry.value is not None:
            values[entry.name] = b.scalar(entry.value, entry.dtype)
            continue
        source = Source(entry.shape, entry.dtype, entry.name, entry.strides)
        program.sources[entry.name] = source
        values[entry.name] = source
    for op in case.ops:
        values[op.name] = _apply(op, tuple(_resolve(a, values) for a in op.args))
    for leaf in leaves(case.tree):
        value = values[leaf]
        if not isinstance(value, Value):
            raise Unsupported(f"output {leaf} is not a tensor")
        program.outputs.append(value)
    return program


def leaves(tree: Any) -> list[str]:
    """Names of the tensors in an output structure, in order."""
    if "v" in tree:
        return [tree["v"]]
    if "c" in tree:
        return []
    children = [v for _, v in tree["dict"]] if "dict" in tree else next(iter(tree.values()))
    return [name for child in children for name in leaves(child)]


def _resolve(arg: Any, values: dict[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, list):
        return [_resolve(a, values) for a in arg]
    return arg


def _apply(op: GraphOp, args: tuple[Any, ...]) -> Any:
    base = op.op.partition(".")[0]
    rule = RULES.get(op.op) or RULES.get(base)
    if rule is None:
        raise Unsupported(f"operator {op.op} is not covered by the playbook")
    try:
        result = rule(op, args)
    except Unsupported as error:
        if base in error.cause:
            raise
        raise Unsupported(f"operator {op.op}: {error.cause}") from None
    if op.shape is None or not isinstance(result, Value):
        return result
    if prod(result.shape) != prod(op.shape):
        result = b.expand(result, op.shape)
    result = b.reshape(result, op.shape)
    return result if result.dtype == op.dtype else b.cast(result, op.dtype)


def _getitem(op: GraphOp, args: tuple[Any, ...]) -> Any:
    result = args[0][args[1]]
    if result is None:
        raise Unsupported(f"result {args[1]} of a {op.name} is not covered")
    return result


def _slice(op: GraphOp, args: tuple[Any, ...]) -> Value:
    given = [*args[1:], *(0, None, None, 1)[len(args) - 1 :]]
    dim, start, stop, step = given
    value: Value = args[0]
    limit = value.shape[dim]
    return b.slice_(value, dim, start or 0, limit if stop is None else stop, step)


def _split(op: GraphOp, args: tuple[Any, ...]) -> list[Value]:
    value, size = args[0], args[1]
    dim = args[2] if len(args) > 2 else op.kwargs.get("dim", 0)
    extent = value.shape[dim]
    sizes = size if isinstance(size, list) else [min(size, extent - s) for s in range(0, extent, size)]
    parts, start = [], 0
    for n in sizes:
        parts.append(b.slice_(value, dim, start, start + n))
        start += n
    return parts


def _unbind(op: GraphOp, args: tuple[Any, ...]) -> list[Value]:
    dim = args[1] if len(args) > 1 else 0
    return [b.select(args[0], dim, k) for k in range(args[0].shape[dim])]


def _squeeze(op: GraphOp, args: tuple[Any, ...]) -> Value:
    dims = args[1] if len(args) > 1 else None
    return b.squeeze(args[0], [dims] if isinstance(dims, int) else dims)


def _transpose(op: GraphOp, args: tuple[Any, ...]) -> Value:
    rank = len(args[0].shape)
    order = list(range(rank))
    if rank >= 2:
        first, second = (args[1] % rank, args[2] % rank) if len(args) > 2 else (0, 1)
        order[first], order[second] = second, first
    return b.permute(args[0], order)


def _arange(op: GraphOp, args: tuple[Any, ...]) -> Value:
    start, stop, step = {1: (0, args[0], 1), 2: (*args, 1), 3: args}[len(args)]
    if not all(isinstance(n, int) for n in (start, stop, step)):
        raise Unsupported("arange with bounds that are not whole numbers")
    return b.cast(b.iota(len(range(start, stop, step)), start, step), op.dtype)


def _triangle(lower: bool) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
        value: Value = args[0]
        diagonal = args[1] if len(args) > 1 else 0
        row = b.unsqueeze(b.iota(value.shape[-2]), 1)
        column = b.iota(value.shape[-1], -diagonal)
        kept = b.pointwise("le" if lower else "ge", column, row)
        return b.pointwise("where", kept, value, 0, dtype=value.dtype)

    return rule


def _select_scatter(op: GraphOp, args: tuple[Any, ...]) -> Value:
    value, part, dim, position = args
    rank = len(value.shape)
    dim, position = dim % rank, position % value.shape[dim]
    index = b.iota(value.shape[dim])
    index = b.reshape(index, [n if k == dim else 1 for k, n in enumerate(value.shape)])
    chosen = b.pointwise("eq", index, position)
    return b.pointwise("where", chosen, b.unsqueeze(part, dim), value, dtype=value.dtype)


def _copy(op: GraphOp, args: tuple[Any, ...]) -> Value:
    return b.cast(b.expand(args[1], args[0].shape), args[0].dtype)


def matmul(a: Value, other: Value) -> Value:
    """``torch.matmul`` of at least one-dimensional tensors, over floats of one type."""
    if a.dtype not in FLOATS or other.dtype not in FLOATS:
        raise Unsupported(f"a matrix product of {a.dtype} and {other.dtype} is not covered")
    x = b.unsqueeze(a, 0) if len(a.shape) == 1 else a
    y = b.unsqueeze(other, 1) if len(other.shape) == 1 else other
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    if len(y.shape) == 2:
        result = b.gemm(b.reshape(x, (1, prod(x.shape[:-1]), k)), b.unsqueeze(y, 0))
        lead = x.shape[:-1]
    else:
        batch = b.broadcast_shape([x.shape[:-2], y.shape[:-2]])
        left = b.reshape(b.expand(x, (*batch, m, k)), (prod(batch), m, k))
        right = b.reshape(b.expand(y, (*batch, k, n)), (prod(batch), k, n))
        result, lead = b.gemm(left, right), (*batch, m)
    shape = [*lead, n]
    if len(other.shape) == 1:
        shape.pop()
    if len(a.shape) == 1:
        shape.pop(len(lead) - 1)
    return b.reshape(result, shape)


def _linear(op: GraphOp, args: tuple[Any, ...]) -> Value:
    x, weight = args[0], args[1]
    bias = args[2] if len(args) > 2 else None
    result = matmul(x, b.permute(weight, (1, 0)))
    return result if bias is None else b.pointwise("add", result, bias, dtype=op.dtype)


def _addmm(op: GraphOp, args: tuple[Any, ...]) -> Value:
    beta, alpha = op.kwargs.get("beta", 1), op.kwargs.get("alpha", 1)
    product = matmul(args[1], args[2])
    product = product if alpha == 1 else b.pointwise("mul", product, alpha, dtype=op.dtype)
    addend = args[0] if beta == 1 else b.pointwise("mul", args[0], beta, dtype=op.dtype)
    return product if beta == 0 else b.pointwise("add", product, addend, dtype=op.dtype)


def _matmul(op: GraphOp, args: tuple[Any, ...]) -> Value:
    return matmul(args[0], args[1])


def _batch_norm(op: GraphOp, args: tuple[Any, ...]) -> Any:
    x, weight, bias, mean, variance = args[:5]
    eps = args[6]
    shape = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    scale = b.pointwise("rsqrt", b.pointwise("add", variance, eps))
    y = b.pointwise("mul", b.pointwise("sub", x, b.reshape(mean, shape)), b.reshape(scale, shape))
    if weight is not None:
        y = b.pointwise("mul", y, b.reshape(weight, shape))
    if bias is not None:
        y = b.pointwise("add", y, b.reshape(bias, shape))
    return [b.cast(y, x.dtype), None, None]


RULES: dict[str, Rule] = {
    **lower_pointwise.RULES,
    **lower_reduce.RULES,
    "getitem": _getitem,
    "view": lambda op, args: b.reshape(args[0], args[1]),
    "_unsafe_view": lambda op, args: b.reshape(args[0], args[1]),
    "reshape": lambda op, args: b.reshape(args[0], args[1]),
    "permute": lambda op, args: b.permute(args[0], args[1]),
    "transpose": _transpose,
    "t": _transpose,
    "expand": lambda op, args: b.expand(args[0], args[1]),
    "slice": _slice,
    "select": lambda op, args: b.select(*args),
    "flip": lambda op, args: b.flip(args[0], args[1]),
    "squeeze": _squeeze,
    "unsqueeze": lambda op, args: b.unsqueeze(*args),
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _unbind,
    "select_scatter": _select_scatter,
    "copy": _copy,
    "arange": _arange,
    "tril": _triangle(True),
    "triu": _triangle(False),
    "linear": _linear,
    "addmm": _addmm,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "matmul": _matmul,
    "_native_batch_norm_legit_no_training": _batch_norm,
}
