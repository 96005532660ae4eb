"""C expressions of kernel nodes, the same on both backends; functions come from the template library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cuda_agent.agent.playbook.affine import Affine
from cuda_agent.agent.playbook.ir import CType, Unsupported
from cuda_agent.agent.playbook.kernel import Kernel, Node

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "!=", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
# Functions of the library, by operation. Costly ones are worth keeping between passes over a row.
FUNCTIONS = frozenset(
    [
        "exp",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "exp2",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "sqrt",
        "rsqrt",
        "floor",
        "ceil",
        "round",
        "trunc",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "atan2",
        "pow",
        "fmod",
        "remainder",
        "floordiv",
        "truncdiv",
        "min",
        "max",
        "abs",
        "sign",
    ]
)
CHEAP = frozenset(["sqrt", "floor", "ceil", "round", "trunc", "min", "max", "abs", "sign"])


def literal(number: float | int | bool, ctype: CType) -> str:
    """A number as a C literal of the type."""
    if ctype is CType.B:
        return "true" if number else "false"
    if ctype is CType.I:
        return f"{int(number)}LL"
    value = float(number)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f" if abs(value) < 3.4028236e38 else ("INFINITY" if value > 0 else "-INFINITY")


def convert(text: str, source: CType, target: CType) -> str:
    """``text`` of one type as another."""
    if source is target:
        return text
    if target is CType.B:
        return f"({text} != 0)"
    return f"({target.value}){text}"


def affine_text(form: Affine, names: Sequence[str]) -> str:
    """An affine form over named counters."""
    terms = [n if c == 1 else f"{n} * {c}" for c, n in zip(form.coefs, names, strict=True) if c]
    if form.const or not terms:
        terms.append(str(form.const))
    return " + ".join(terms)


def pointwise_text(node: Node, args: Sequence[str], types: Sequence[CType]) -> str:
    """Expression of a pointwise node whose operands' texts and types are given.

    Raises:
        Unsupported: the operation has no kernel form.
    """
    compute = node.compute
    if node.op == "where":
        yes, no = (convert(a, t, compute) for a, t in zip(args[1:], types[1:], strict=True))
        return f"({convert(args[0], types[0], CType.B)} ? {yes} : {no})"
    if node.op in ("cast", "copy"):
        return convert(args[0], types[0], node.ctype)
    texts = [convert(a, t, compute) for a, t in zip(args, types, strict=True)]
    if node.op in INFIX:
        return f"({texts[0]} {INFIX[node.op]} {texts[1]})"
    special = _SPECIAL.get(node.op)
    if special is not None:
        return special(texts, compute)
    if node.op in FUNCTIONS:
        return f"pb_{node.op}({', '.join(texts)})"
    raise Unsupported(f"operation {node.op} has no kernel form")


def _relu(texts: Sequence[str], compute: CType) -> str:
    zero = literal(0, compute)
    return f"({texts[0]} < {zero} ? {zero} : {texts[0]})"


def _finite_test(kind: str) -> Callable[[Sequence[str], CType], str]:
    def make(texts: Sequence[str], compute: CType) -> str:
        if compute is not CType.F:
            return "true" if kind == "isfinite" else "false"
        x = texts[0]
        return {
            "isnan": f"({x} != {x})",
            "isinf": f"(pb_abs({x}) == INFINITY)",
            "isfinite": f"(pb_abs({x}) < INFINITY)",
        }[kind]

    return make


_SPECIAL: dict[str, Callable[[Sequence[str], CType], str]] = {
    "neg": lambda t, _: f"(-{t[0]})",
    "not": lambda t, _: f"(!{t[0]})",
    "bitnot": lambda t, _: f"(~{t[0]})",
    "relu": _relu,
    "reciprocal": lambda t, _: f"(1.0f / {t[0]})",
    "isnan": _finite_test("isnan"),
    "isinf": _finite_test("isinf"),
    "isfinite": _finite_test("isfinite"),
}


def functions_used(kernels: Sequence[Kernel]) -> set[str]:
    """Names of the library sections that the kernels' expressions call."""
    names: set[str] = set()
    for kernel in kernels:
        for node in kernel.nodes:
            if node.op in FUNCTIONS:
                names.add(node.op)
            if node.op in ("isinf", "isfinite"):
                names.add("abs")
            if node.op == "reduce" and node.kind in ("max", "min"):
                names.add(node.kind)
            if node.dtype in ("float16", "bfloat16"):
                names.add(node.dtype)
        names.update(s.dtype for s in kernel.stores if s.dtype in ("float16", "bfloat16"))
    return names


def identity(kind: str, ctype: CType) -> str:
    """Neutral element of a reduction."""
    if kind in ("sum", "prod"):
        return literal(0 if kind == "sum" else 1, ctype)
    if ctype is CType.F:
        return "-INFINITY" if kind == "max" else "INFINITY"
    return "INT64_MIN" if kind == "max" else "INT64_MAX"


def needed_for(kernel: Kernel, targets: Sequence[int]) -> list[int]:
    """Nodes that the targets depend on, themselves included, in order; reductions are not entered."""
    seen: set[int] = set()
    stack = list(targets)
    while stack:
        index = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        if kernel.nodes[index].op != "reduce":
            stack.extend(kernel.nodes[index].args)
    return sorted(seen)
