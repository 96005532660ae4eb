"""Lowering rules of reductions, softmax and normalisations."""

# Every rule takes (op, args), whether it needs both or not.
# ruff: noqa: ARG001, ARG005
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

from cuda_agent.agent.playbook import builder as b
from cuda_agent.agent.playbook.graph import GraphOp
from cuda_agent.agent.playbook.ir import CType, Unsupported, Value, ctype_of

Rule = Callable[[GraphOp, tuple[Any, ...]], Any]
EPSILON = {"float32": 1.1920928955078125e-07, "float16": 0.0009765625, "bfloat16": 0.0078125}


def _argument(op: GraphOp, args: tuple[Any, ...], position: int, name: str, default: Any = None) -> Any:
    return op.kwargs.get(name, args[position] if len(args) > position else default)


def _dims(value: Value, dims: Any) -> list[int]:
    if dims is None or dims == []:
        return list(range(len(value.shape)))
    return [dims] if isinstance(dims, int) else list(dims)


def _count(value: Value, dims: Sequence[int]) -> int:
    return prod(value.shape[d] for d in dims) if value.shape else 1


def mean(value: Value, dims: Sequence[int]) -> Value:
    """Mean, dimensions kept."""
    total = b.reduce("sum", b.cast(value, "float32"), dims)
    return b.pointwise("div", total, float(_count(value, dims)))


def variance(value: Value, dims: Sequence[int], correction: float) -> Value:
    """Two-pass variance, dimensions kept."""
    centred = b.pointwise("sub", value, mean(value, dims))
    total = b.reduce("sum", b.pointwise("mul", centred, centred), dims)
    count = _count(value, dims) - correction
    # 0 / 0 is NaN, as eager gives for one sample with Bessel's correction.
    return b.pointwise("div", total, float(max(count, 0)))


def softmax(value: Value, dim: int) -> Value:
    """exp(x - max) / sum."""
    x = b.cast(value, "float32")
    top = b.reduce("max", x, [dim])
    terms = b.pointwise("exp", b.pointwise("sub", x, top))
    return b.pointwise("div", terms, b.reduce("sum", terms, [dim]))


def log_softmax(value: Value, dim: int) -> Value:
    """x - max - log(sum exp(x - max))."""
    x = b.cast(value, "float32")
    shifted = b.pointwise("sub", x, b.reduce("max", x, [dim]))
    total = b.reduce("sum", b.pointwise("exp", shifted), [dim])
    return b.pointwise("sub", shifted, b.pointwise("log", total))


def logsumexp(value: Value, dims: Sequence[int]) -> Value:
    """max + log(sum exp(x - max)), an infinite maximum taken as 0 inside."""
    x = b.cast(value, "float32")
    top = b.reduce("max", x, dims)
    safe = b.pointwise("where", b.pointwise("eq", b.pointwise("abs", top), inf), 0.0, top)
    total = b.reduce("sum", b.pointwise("exp", b.pointwise("sub", x, safe)), dims)
    return b.pointwise("add", b.pointwise("log", total), safe)


def normalised(value: Value, dims: Sequence[int], eps: float) -> Value:
    """(x - mean) * rsqrt(var + eps)."""
    centred = b.pointwise("sub", value, mean(value, dims))
    total = b.reduce("sum", b.pointwise("mul", centred, centred), dims)
    spread = b.pointwise("div", total, float(_count(value, dims)))
    return b.pointwise("mul", centred, b.pointwise("rsqrt", b.pointwise("add", spread, eps)))


def _gain(y: Value, weight: Value | None, bias: Value | None, shape: Sequence[int] | None = None) -> Value:
    if weight is not None:
        y = b.pointwise("mul", y, weight if shape is None else b.reshape(weight, shape))
    if bias is not None:
        y = b.pointwise("add", y, bias if shape is None else b.reshape(bias, shape))
    return y


def _layer_norm(op: GraphOp, args: tuple[Any, ...]) -> Value:
    x, normal = args[0], args[1]
    weight, bias = _argument(op, args, 2, "weight"), _argument(op, args, 3, "bias")
    eps = _argument(op, args, 4, "eps", 1e-5)
    dims = [len(x.shape) - k - 1 for k in range(len(normal))]
    return _gain(normalised(x, dims, eps), weight, bias)


def _native_layer_norm(op: GraphOp, args: tuple[Any, ...]) -> Any:
    return [b.cast(_layer_norm(op, args), args[0].dtype), None, None]


def _rms_norm(op: GraphOp, args: tuple[Any, ...]) -> Value:
    x, normal = args[0], args[1]
    weight, eps = _argument(op, args, 2, "weight"), _argument(op, args, 3, "eps")
    dims = [len(x.shape) - k - 1 for k in range(len(normal))]
    square = b.pointwise("mul", x, x)
    eps = EPSILON[x.dtype] if eps is None else eps
    scale = b.pointwise("rsqrt", b.pointwise("add", mean(square, dims), eps))
    return _gain(b.pointwise("mul", x, scale), weight, None)


def _group_norm(x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float) -> Value:
    batch, channels = x.shape[0], x.shape[1]
    inner = prod(x.shape[2:])
    split = b.reshape(x, (batch, groups, channels // groups, inner))
    shape = (1, groups, channels // groups, 1)
    return b.reshape(_gain(normalised(split, (2, 3), eps), weight, bias, shape), x.shape)


def _group_norm_rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
    return _group_norm(
        args[0], args[1], _argument(op, args, 2, "weight"), _argument(op, args, 3, "bias"),
        _argument(op, args, 4, "eps", 1e-5),
    )  # fmt: skip


def _native_group_norm(op: GraphOp, args: tuple[Any, ...]) -> Any:
    x, weight, bias, _, _, _, groups, eps = args
    return [b.cast(_group_norm(x, groups, weight, bias, eps), x.dtype), None, None]


def _instance_norm(op: GraphOp, args: tuple[Any, ...]) -> Value:
    x, weight, bias, running_mean, _, use_input_stats, _, eps = args[:8]
    if not use_input_stats or running_mean is not None:
        raise Unsupported("instance_norm with running statistics")
    return _group_norm(x, x.shape[1], weight, bias, eps)


def _untrained_batch_norm(op: GraphOp, args: tuple[Any, ...]) -> Any:
    x, weight, bias = args[:3]
    eps = args[-1]
    dims = [k for k in range(len(x.shape)) if k != 1]
    shape = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    return [b.cast(_gain(normalised(x, dims, eps), weight, bias, shape), x.dtype), None, None]


def _plain(kind: str) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
        value: Value = args[0]
        wide = b.cast(value, "float32" if ctype_of(op.dtype) is CType.F else "int64")
        return b.reduce(kind, wide, _dims(value, _argument(op, args, 1, "dim")))

    return rule


def _mean(op: GraphOp, args: tuple[Any, ...]) -> Value:
    return mean(args[0], _dims(args[0], _argument(op, args, 1, "dim")))


def _var(root: bool) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
        correction = op.kwargs.get("correction", 1)
        spread = variance(
            args[0], _dims(args[0], _argument(op, args, 1, "dim")), 1 if correction is None else correction
        )
        return b.pointwise("sqrt", spread) if root else spread

    return rule


def _var_mean(op: GraphOp, args: tuple[Any, ...]) -> Any:
    dims = _dims(args[0], _argument(op, args, 1, "dim"))
    correction = op.kwargs.get("correction", 1)
    results = [variance(args[0], dims, 1 if correction is None else correction), mean(args[0], dims)]
    if not _argument(op, args, 2, "keepdim", False):
        results = [b.squeeze(r, dims) for r in results]
    return [b.cast(r, args[0].dtype) for r in results]


def _extreme(kind: str) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Any:
        value: Value = args[0]
        if op.shape is not None:
            return b.reduce(kind, value, _dims(value, _argument(op, args, 1, "dim")))
        dim = _argument(op, args, 1, "dim", 0)
        keep = _argument(op, args, 2, "keepdim", False)
        results = [b.reduce(kind, value, [dim]), argument_of(kind, value, dim)]
        return [r if keep else b.squeeze(r, [dim]) for r in results]

    return rule


def argument_of(kind: str, value: Value, dim: int) -> Value:
    """First index of the extreme (NaN counts as extreme), dimension kept."""
    if not value.shape:
        return b.scalar(0)
    dim %= len(value.shape)
    extent = value.shape[dim]
    top = b.reduce(kind, value, [dim])
    index = b.reshape(b.iota(extent), [extent if k == dim else 1 for k in range(len(value.shape))])
    hit = b.pointwise("or", b.pointwise("eq", value, top), b.pointwise("isnan", value, compute=CType.F))
    candidates = b.pointwise("where", hit, index, extent, dtype="int64")
    return b.reduce("min", candidates, [dim])


def _argument_rule(kind: str) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
        dim = _argument(op, args, 1, "dim")
        value = args[0] if dim is not None else b.reshape(args[0], (-1,))
        return argument_of(kind, value, 0 if dim is None else dim)

    return rule


def _vector_norm(op: GraphOp, args: tuple[Any, ...]) -> Value:
    x = b.cast(args[0], "float32")
    order = _argument(op, args, 1, "ord", 2)
    dims = _dims(x, _argument(op, args, 2, "dim"))
    size = b.pointwise("abs", x)
    if order == 2:
        return b.pointwise("sqrt", b.reduce("sum", b.pointwise("mul", x, x), dims))
    if order == 1:
        return b.reduce("sum", size, dims)
    if order in (inf, -inf):
        return b.reduce("max" if order > 0 else "min", size, dims)
    if order == 0:
        return b.reduce("sum", b.cast(b.pointwise("ne", x, 0.0), "float32"), dims)
    total = b.reduce("sum", b.pointwise("pow", size, float(order)), dims)
    return b.pointwise("pow", total, 1.0 / float(order))


def _truth(kind: str) -> Rule:
    def rule(op: GraphOp, args: tuple[Any, ...]) -> Value:
        value: Value = args[0]
        flags = b.cast(b.pointwise("ne", value, 0), "int64")
        return b.cast(b.reduce(kind, flags, _dims(value, _argument(op, args, 1, "dim"))), "bool")

    return rule


RULES: dict[str, Rule] = {
    "sum": _plain("sum"),
    "prod": _plain("prod"),
    "mean": _mean,
    "var": _var(False),
    "std": _var(True),
    "var_mean": _var_mean,
    "amax": _extreme("max"),
    "amin": _extreme("min"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "argmax": _argument_rule("max"),
    "argmin": _argument_rule("min"),
    "any": _truth("max"),
    "all": _truth("min"),
    "linalg_vector_norm": _vector_norm,
    "logsumexp": lambda op, args: logsumexp(args[0], _dims(args[0], args[1])),
    "softmax": lambda op, args: softmax(args[0], args[1]),
    "_softmax": lambda op, args: softmax(args[0], args[1]),
    "log_softmax": lambda op, args: log_softmax(args[0], args[1]),
    "_log_softmax": lambda op, args: log_softmax(args[0], args[1]),
    "layer_norm": _layer_norm,
    "native_layer_norm": _native_layer_norm,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": lambda op, args: [b.cast(_rms_norm(op, args), args[0].dtype), None],
    "group_norm": _group_norm_rule,
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "_native_batch_norm_legit": _untrained_batch_norm,
}
