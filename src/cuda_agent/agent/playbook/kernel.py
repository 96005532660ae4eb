"""One fused kernel: a loop nest, the expressions in it, and how they are found from IR values.

A kernel iterates over a space whose dimensions are kept (outer, inner) or reduced. Every expression has
a level (constant over the row, one a lane, or one an element) and a stage (how many reductions must be
complete before it can be computed).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import prod

from cuda_agent.agent.playbook.affine import (
    Affine,
    Shape,
)
from cuda_agent.agent.playbook.ir import (
    CType,
    Value,
)

NO_FORM = Affine(())


class Mode(StrEnum):
    """Shape of the loop nest: no reduction, over the innermost dimension, over an outer one."""

    POINTWISE = "pointwise"
    ROW = "row"
    COLUMN = "column"


class Level(IntEnum):
    """How often an expression is computed."""

    OUTER = 0
    LANE = 1
    FULL = 2


@dataclass(frozen=True)
class Node:
    """One expression.

    Attributes:
        op: ``load``, ``const``, ``iota``, ``reduce`` or a pointwise operation.
        args: indices of earlier nodes.
        ctype: type of the result; ``compute`` the type of the operands.
        buffer, dtype, form: of a load; ``form`` also of an iota.
        kind: of a reduction.
        number: of a constant.
    """

    op: str
    args: tuple[int, ...]
    ctype: CType
    compute: CType
    stage: int = 0
    level: Level = Level.OUTER
    buffer: str = ""
    dtype: str = ""
    form: Affine = NO_FORM
    kind: str = ""
    number: float | int | bool = 0


@dataclass(frozen=True)
class Store:
    """``node`` written to ``buffer`` at ``form``."""

    buffer: str
    dtype: str
    node: int
    form: Affine


@dataclass
class Kernel:
    """A fused kernel, dimensions collapsed.

    Attributes:
        outer: extents of the kept dimensions that are not lanes.
        reduced: extents of the reduced dimensions; empty in pointwise kernels.
        lane: extent of the dimension that neighbouring lanes walk: the last of the reduced ones (row),
            or the last kept one (pointwise, column).
        stages: number of reductions that depend on each other.
    """

    mode: Mode
    outer: Shape
    reduced: Shape
    lane: int
    nodes: list[Node]
    stores: list[Store]
    stages: int
    roots: list[Value] = field(default_factory=list)

    @property
    def loads(self) -> set[str]:
        """Buffers read."""
        return {n.buffer for n in self.nodes if n.op == "load"}

    @property
    def buffers(self) -> list[str]:
        """Buffers read or written, in order of first use."""
        names = [n.buffer for n in self.nodes if n.op == "load"] + [s.buffer for s in self.stores]
        return list(dict.fromkeys(names))

    @property
    def counters(self) -> int:
        """Number of counters in every form: outer, then reduced, then (column, pointwise) the lane."""
        return len(self.outer) + len(self.reduced) + (self.mode is not Mode.ROW)

    @property
    def rows(self) -> int:
        """Number of independent rows (or lane groups)."""
        return prod(self.outer)

    @property
    def numel(self) -> int:
        """Elements of the iteration space."""
        return prod(self.outer) * prod(self.reduced) * (1 if self.mode is Mode.ROW else self.lane)


def form_level(kernel: Kernel, form: Affine) -> Level:
    """How often a form changes."""
    outer = len(kernel.outer)
    if kernel.mode is Mode.COLUMN:
        if any(form.coefs[outer:-1]):
            return Level.FULL
        return Level.LANE if form.coefs[-1] else Level.OUTER
    return Level.FULL if any(form.coefs[outer:]) else Level.OUTER
