"""Lowering rules of pointwise operators."""

# Every rule takes (op, args), whether it needs both or not.
# ruff: noqa: ARG001, ARG005
from __future__ import annotations

import math
from collections.abc import Callable

from cuda_agent.agent.playbook.builder import Number, Operand, as_value, cast, pointwise, scalar
from cuda_agent.agent.playbook.graph import GraphOp
from cuda_agent.agent.playbook.ir import CType, Unsupported, Value, ctype_of

SQRT_HALF = math.sqrt(0.5)
UNARY = frozenset(
    [
        "relu",
        "abs",
        "neg",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sigmoid",
        "erf",
        "expm1",
        "log1p",
        "log2",
        "log10",
        "exp2",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "reciprocal",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "erfc",
    ]
)
BINARY = {
    "mul": "mul", "minimum": "min", "maximum": "max", "fmod": "fmod", "remainder": "remainder",
    "atan2": "atan2", "pow": "pow",
}  # fmt: skip
Rule = Callable[[GraphOp, tuple[object, ...]], Value]


def _f(op: str, *args: Operand) -> Value:
    return pointwise(op, *args, dtype="float32")


def _where(condition: Operand, a: Operand, b: Operand, dtype: str = "float32") -> Value:
    return pointwise("where", condition, a, b, dtype=dtype)


def sigmoid(x: Operand) -> Value:
    """1 / (1 + exp(-x))."""
    return _f("sigmoid", x)


def silu(x: Operand) -> Value:
    """x * sigmoid(x)."""
    return _f("div", x, _f("add", 1.0, _f("exp", _f("neg", x))))


def gelu(x: Operand, approximate: str = "none") -> Value:
    """Gaussian error linear unit, exact or with tanh."""
    if approximate == "none":
        return _f("mul", _f("mul", x, 0.5), _f("add", 1.0, _f("erf", _f("mul", x, SQRT_HALF))))
    cube = _f("mul", _f("mul", x, x), x)
    inner = _f("mul", math.sqrt(2.0 / math.pi), _f("add", x, _f("mul", 0.044715, cube)))
    return _f("mul", _f("mul", x, 0.5), _f("add", 1.0, _f("tanh", inner)))


def softplus(x: Operand, beta: Number = 1.0, threshold: Number = 20.0) -> Value:
    """log(1 + exp(beta x)) / beta, x itself above the threshold."""
    scaled = x if beta == 1 else _f("mul", x, float(beta))
    soft = _f("log1p", _f("exp", scaled))
    soft = soft if beta == 1 else _f("div", soft, float(beta))
    return _where(pointwise("gt", scaled, float(threshold)), x, soft)


def log_sigmoid(x: Operand) -> Value:
    """min(0, x) - log1p(exp(-abs(x)))."""
    return _f("sub", _f("min", x, 0.0), _f("log1p", _f("exp", _f("neg", _f("abs", x)))))


def mish(x: Operand) -> Value:
    """x * tanh(softplus(x))."""
    return _f("mul", x, _f("tanh", softplus(x)))


def clamp(x: Operand, low: Operand | None, high: Operand | None, dtype: str = "float32") -> Value:
    """Limited from below and above; NaN stays NaN."""
    value = as_value(x)
    if low is not None:
        value = pointwise("max", value, low, dtype=dtype)
    return value if high is None else pointwise("min", value, high, dtype=dtype)


def elu(x: Operand, alpha: Number = 1.0, scale: Number = 1.0, input_scale: Number = 1.0) -> Value:
    """scale * x above 0, scale * alpha * (exp(input_scale x) - 1) below."""
    inner = x if input_scale == 1 else _f("mul", x, float(input_scale))
    negative = _f("mul", _f("expm1", inner), float(alpha) * float(scale))
    positive = x if scale == 1 else _f("mul", x, float(scale))
    return _where(pointwise("gt", x, 0.0), positive, negative)


def leaky_relu(x: Operand, slope: Operand = 0.01) -> Value:
    """x above 0, slope * x below."""
    return _where(pointwise("gt", x, 0.0), x, _f("mul", x, slope))


def hardsigmoid(x: Operand) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    return _f("div", clamp(_f("add", x, 3.0), 0.0, 6.0), 6.0)


def hardswish(x: Operand) -> Value:
    """x * min(max(x + 3, 0), 6) / 6."""
    return _f("div", _f("mul", x, clamp(_f("add", x, 3.0), 0.0, 6.0)), 6.0)


def power(x: Operand, exponent: Operand, dtype: str) -> Value:
    """x ** exponent; small constant exponents without a logarithm."""
    if isinstance(exponent, int | float) and ctype_of(dtype) is CType.F:
        special: dict[float, Callable[[], Value]] = {
            0.5: lambda: _f("sqrt", x),
            -0.5: lambda: _f("rsqrt", x),
            -1.0: lambda: _f("reciprocal", x),
            1.0: lambda: as_value(x),
            2.0: lambda: _f("mul", x, x),
            3.0: lambda: _f("mul", _f("mul", x, x), x),
            4.0: lambda: _f("mul", _f("mul", x, x), _f("mul", x, x)),
            -2.0: lambda: _f("reciprocal", _f("mul", x, x)),
        }
        if float(exponent) in special:
            return special[float(exponent)]()
    if ctype_of(dtype) is not CType.F:
        if exponent == 2:
            return pointwise("mul", x, x, dtype=dtype)
        raise Unsupported(f"integer pow with exponent {exponent}")
    return _f("pow", x, exponent)


def _add(sign: str) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        a, b = args[0], args[1]
        alpha = op.kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        assert isinstance(a, Value | int | float) and isinstance(b, Value | int | float)
        if alpha != 1:
            b = pointwise("mul", b, alpha, dtype=op.dtype)
        return pointwise(sign, a, b, dtype=op.dtype)

    return rule


def _div(op: GraphOp, args: tuple[object, ...]) -> Value:
    a, b = _operand(args[0]), _operand(args[1])
    mode = op.kwargs.get("rounding_mode", args[2] if len(args) > 2 else None)
    if mode is None:
        return pointwise("div", a, b, dtype=op.dtype)
    if ctype_of(op.dtype) is not CType.F:
        return pointwise("floordiv" if mode == "floor" else "truncdiv", a, b, dtype=op.dtype)
    return _f("floor" if mode == "floor" else "trunc", _f("div", a, b))


def _operand(value: object) -> Operand:
    if isinstance(value, Value | int | float):
        return value
    raise Unsupported(f"operand {value!r} is neither a tensor nor a number")


def _simple(function: Callable[..., Value]) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        return function(*args, **dict(op.kwargs))

    return rule


def _typed(name: str) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        return pointwise(name, *(_operand(a) for a in args), dtype=op.dtype)

    return rule


def _bitwise(name: str) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        logical = {"and": "and", "or": "or", "xor": "xor", "not": "not"}
        if op.dtype == "bool" or op.op.startswith("logical"):
            return pointwise(logical[name], *(_operand(a) for a in args))
        return pointwise(f"bit{name}", *(_operand(a) for a in args), dtype=op.dtype)

    return rule


def _clamp(op: GraphOp, args: tuple[object, ...]) -> Value:
    bounds = [op.kwargs.get(name, args[k] if len(args) > k else None) for k, name in ((1, "min"), (2, "max"))]
    if op.op.startswith("clamp_min"):
        bounds = [args[1], None]
    elif op.op.startswith("clamp_max"):
        bounds = [None, args[1]]
    low, high = (None if b is None else _operand(b) for b in bounds)
    return clamp(_operand(args[0]), low, high, op.dtype)


def _hardtanh(op: GraphOp, args: tuple[object, ...]) -> Value:
    low, high = (args[1] if len(args) > 1 else -1.0), (args[2] if len(args) > 2 else 1.0)
    return clamp(_operand(args[0]), _operand(low), _operand(high), op.dtype)


def _cast(op: GraphOp, args: tuple[object, ...]) -> Value:
    value = as_value(_operand(args[0]))
    return cast(value, op.dtype)


def _masked_fill(op: GraphOp, args: tuple[object, ...]) -> Value:
    return _where(_operand(args[1]), _operand(args[2]), _operand(args[0]), op.dtype)


def _addcmul(name: str) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        value = op.kwargs.get("value", 1)
        product = _f(name, _operand(args[1]), _operand(args[2]))
        product = product if value == 1 else _f("mul", product, float(value))
        return pointwise("add", _operand(args[0]), product, dtype=op.dtype)

    return rule


def _lerp(op: GraphOp, args: tuple[object, ...]) -> Value:
    start, end, weight = (_operand(a) for a in args[:3])
    return _f("add", start, _f("mul", weight, _f("sub", end, start)))


def _reversed_sub(op: GraphOp, args: tuple[object, ...]) -> Value:
    return _add("sub")(op, (args[1], args[0], *args[2:]))


def _threshold(op: GraphOp, args: tuple[object, ...]) -> Value:
    x, limit, value = (_operand(a) for a in args[:3])
    return _where(pointwise("le", x, limit), value, x, op.dtype)


def _alias(op: GraphOp, args: tuple[object, ...]) -> Value:
    return as_value(_operand(args[0]))


def _full(op: GraphOp, number: Number) -> Value:
    from cuda_agent.agent.playbook.builder import expand

    return expand(scalar(number, op.dtype), op.shape or ())


def _filled(position: int) -> Rule:
    def rule(op: GraphOp, args: tuple[object, ...]) -> Value:
        number = op.kwargs.get("fill_value", args[position] if len(args) > position else None)
        if not isinstance(number, int | float):
            raise Unsupported(f"{op.op} with a fill value that is not a number")
        return _full(op, number)

    return rule


def _constant(number: Number) -> Rule:
    return lambda op, args: _full(op, number)


RULES: dict[str, Rule] = {
    **{name: _typed(name) for name in UNARY},
    **{name: _typed(kernel) for name, kernel in BINARY.items()},
    **{name: _typed(name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")},
    **{f"{kind}_{n}": _bitwise(n) for kind in ("bitwise", "logical") for n in ("and", "or", "xor", "not")},
    "pow": lambda op, args: power(_operand(args[0]), _operand(args[1]), op.dtype),
    "square": lambda op, args: power(_operand(args[0]), 2, op.dtype),
    "add": _add("add"),
    "sub": _add("sub"),
    "rsub": _reversed_sub,
    "div": _div,
    "true_divide": _div,
    "where": _typed("where"),
    "masked_fill": _masked_fill,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "hardtanh": _hardtanh,
    "relu6": lambda op, args: clamp(_operand(args[0]), 0.0, 6.0),
    "silu": _simple(silu),
    "gelu": _simple(gelu),
    "mish": _simple(mish),
    "elu": _simple(elu),
    "selu": lambda op, args: elu(_operand(args[0]), 1.6732632423543772, 1.0507009873554805),
    "celu": lambda op, args: elu(_operand(args[0]), _num(args, 1, 1.0), 1.0, 1.0 / _num(args, 1, 1.0)),
    "leaky_relu": _simple(leaky_relu),
    "_prelu_kernel": _simple(leaky_relu),
    "softplus": _simple(softplus),
    "log_sigmoid": _simple(log_sigmoid),
    "hardsigmoid": _simple(hardsigmoid),
    "hardswish": _simple(hardswish),
    "softsign": lambda op, args: _f("div", _operand(args[0]), _f("add", 1.0, _f("abs", _operand(args[0])))),
    "threshold": _threshold,
    "addcmul": _addcmul("mul"),
    "addcdiv": _addcmul("div"),
    "lerp": _lerp,
    "_to_copy": _cast,
    "clone": _alias,
    "alias": _alias,
    "detach": _alias,
    "contiguous": _alias,
    "lift_fresh_copy": _alias,
    "positive": _alias,
    "dropout": _alias,
    "native_dropout": _alias,
    "full": _filled(1),
    "full_like": _filled(1),
    "fill": _filled(1),
    "scalar_tensor": _filled(0),
    "zeros": _constant(0),
    "zeros_like": _constant(0),
    "ones": _constant(1),
    "ones_like": _constant(1),
}


def _num(args: tuple[object, ...], position: int, default: float) -> float:
    value = args[position] if len(args) > position else default
    return float(value) if isinstance(value, int | float) else default
