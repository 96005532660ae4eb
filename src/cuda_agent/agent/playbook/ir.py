"""What a module computes, in the few primitives that kernels are made of.

Captured operators are lowered to these (see :mod:`cuda_agent.agent.playbook.lower`): pointwise
operations with broadcasting, reductions that keep their dimensions at size one, views, matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cuda_agent.agent.playbook.affine import Shape
from cuda_agent.errors import CudaAgentError

FLOATS = ("float32", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")


class Unsupported(CudaAgentError):
    """The playbook does not cover this module; ``cause`` names the first operator and why."""


class CType(StrEnum):
    """Type an expression is computed in: float32, int64 or bool."""

    F = "float"
    I = "int64_t"  # noqa: E741
    B = "bool"


def ctype_of(dtype: str) -> CType:
    """Type that values of a torch dtype are computed in.

    Raises:
        Unsupported: float64, complex and quantised types.
    """
    if dtype in FLOATS:
        return CType.F
    if dtype in INTS:
        return CType.I
    if dtype == "bool":
        return CType.B
    raise Unsupported(f"dtype {dtype} is not covered by the playbook")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor somewhere in the computation."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, eq=False)
class Source(Value):
    """An input, parameter or buffer: memory that exists before the call."""

    name: str
    strides: Shape


@dataclass(frozen=True, eq=False)
class Scalar(Value):
    """One number, known from the graph, broadcast to ``shape``."""

    number: float | int | bool


@dataclass(frozen=True, eq=False)
class Iota(Value):
    """``start + step * index`` along a one-dimensional shape."""

    start: int
    step: int


@dataclass(frozen=True, eq=False)
class Pointwise(Value):
    """``op`` of operands that broadcast to ``shape``; ``compute`` is the operands' common type."""

    op: str
    args: tuple[Value, ...]
    compute: CType


@dataclass(frozen=True, eq=False)
class Reduce(Value):
    """``kind`` (sum, max, min, prod) over ``dims`` of ``arg``; the dims stay, with size one."""

    kind: str
    arg: Value
    dims: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class View(Value):
    """``arg`` seen with other indices.

    ``index[k]`` gives dimension k of ``arg`` as (offset, ((output dim, factor), ...)).
    """

    arg: Value
    index: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, eq=False)
class Reshape(Value):
    """``arg`` in the same row-major order under another shape."""

    arg: Value


@dataclass(frozen=True, eq=False)
class Gemm(Value):
    """``a @ b``: a is [batch, m, k], b is [batch, k, n], batch 1 for plain products."""

    a: Value
    b: Value


@dataclass
class Program:
    """A lowered module for one input case.

    Attributes:
        sources: by name, in the order of the captured graph.
        outputs: values in the order of the flattened output.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)


def operands(value: Value) -> tuple[Value, ...]:
    """Direct operands of a value."""
    if isinstance(value, Pointwise):
        return value.args
    if isinstance(value, Reduce | View | Reshape):
        return (value.arg,)
    if isinstance(value, Gemm):
        return (value.a, value.b)
    return ()


def topological(roots: Sequence[Value]) -> list[Value]:
    """Every value the roots need, operands first."""
    order: list[Value] = []
    seen: set[int] = set()
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        value, done = stack.pop()
        if done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack.extend((a, False) for a in reversed(operands(value)) if id(a) not in seen)
    return order
