"""A task before it is text: size constants, tensors, steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import Value

NUM_PROBES = 2
"""Sizes at which shapes are solved: what agrees in both is a rule, not a coincidence."""


class Branch(StrEnum):
    """A step that joins two tensors of one shape."""

    ADD = "add"
    MUL = "mul"
    SUB = "sub"
    MAXIMUM = "maximum"

    @property
    def op(self) -> str:
        """As declared."""
        return f"torch.{self}"


@dataclass
class Dim:
    """A size constant.

    Attributes:
        name: in the task.
        probes: values at which shapes are solved; equal where the value is fixed.
        least, multiple_of, most: what every use of it asks for.
        argument: a constructor takes it, so it is no free size.
        fixed: one value in every form (a number of heads, a kernel size).
    """

    name: str
    probes: tuple[int, ...]
    least: int = 1
    multiple_of: int = 1
    most: int | None = None
    argument: bool = False
    fixed: bool = False

    def fits(self, value: int) -> bool:
        """Whether every use allows the value."""
        in_range = value >= self.least and (self.most is None or value <= self.most)
        return in_range and value % self.multiple_of == 0


@dataclass(frozen=True)
class Axis:
    """One dimension of a tensor.

    Attributes:
        text: expression over size constants; empty where no rule is known.
        values: at each probe.
    """

    text: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor between steps.

    Attributes:
        name: variable; inputs only.
        axes: its shape.
        dtype: PyTorch's name.
        law: of its values; what an operator is known to give, else normal.
        low, high: bounds of integer inputs, as text.
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: str = "float32"
    law: Law = Law.NORMAL
    low: str = "0"
    high: str = "16"

    def same_shape(self, other: Tensor) -> bool:
        """Equal at every probe, so equal by rule."""
        return [axis.values for axis in self.axes] == [axis.values for axis in other.axes]


@dataclass(frozen=True)
class Step:
    """One operator of a task.

    Attributes:
        seed: the operator; ``None`` for a branch.
        branch: the join; ``None`` for a seed.
        options: of the seed.
        form: index of the seed's form.
        sizes: the seed's sizes as expressions over size constants.
        others: inputs after the first: index of a step's result (-1: the task's first input), a new input, or
            ``None`` where the form leaves one out.
        num_outputs: tensors the operator gives; the first goes on.
    """

    seed: Seed | None = None
    branch: Branch | None = None
    options: Mapping[str, Value] = field(default_factory=dict)
    form: int = 0
    sizes: Mapping[str, str] = field(default_factory=dict)
    others: tuple[int | Tensor | None, ...] = ()
    num_outputs: int = 1

    @property
    def op(self) -> str:
        """As declared."""
        return self.seed.op if self.seed is not None else self.branch.op if self.branch else ""


@dataclass(frozen=True)
class Plan:
    """A task.

    Attributes:
        dims: size constants by name, in order of use.
        inputs: of ``forward``, in order; the chain starts at the first.
        steps: in order.
        results: what each step gives.
        dtype: of the floating tensors.
    """

    dims: Mapping[str, Dim]
    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    results: tuple[Tensor, ...]
    dtype: str = "float32"

    @property
    def ops(self) -> tuple[str, ...]:
        """Declared operators, in order."""
        return tuple(step.op for step in self.steps)
