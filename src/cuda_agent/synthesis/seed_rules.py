"""The parts of a seed: rules of sizes, options and inputs; forms, traits, spelling. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.synthesis.law import Law

Value = Any
"""Of an option: bool, int, float, str, None, or a tuple of such."""


@dataclass(frozen=True)
class SizeRule:
    """A size: a whole number that shapes depend on.

    Attributes:
        name: symbol in shapes; the constructor's argument where ``argument``.
        base: the value that the trials used.
        least: smallest value that ran.
        multiple_of: values that ran are multiples of this.
        most: largest value that ran, where a larger one was refused; ``None`` where none was.
        argument: the constructor takes it.
    """

    name: str
    base: int
    least: int = 1
    multiple_of: int = 1
    most: int | None = None
    argument: bool = False

    def fits(self, value: int) -> bool:
        """Whether a value obeys the rule."""
        return (
            value >= self.least
            and value % self.multiple_of == 0
            and (self.most is None or value <= self.most)
        )

    def near(self, value: int) -> int:
        """The nearest value that obeys the rule."""
        step = self.multiple_of
        low = -(-self.least // step) * step
        high = max(low, self.most // step * step) if self.most is not None else None
        rounded = max(low, round(value / step) * step)
        return rounded if high is None else min(rounded, high)


@dataclass(frozen=True)
class OptionRule:
    """A hyper-parameter that is no size.

    Attributes:
        name: of the constructor's argument.
        choices: values that ran, each with all else at its base; the first is the base.
        default: the library's own, left out of code that a person would write.
        required: it has no default.
    """

    name: str
    choices: tuple[Value, ...]
    default: Value = None
    required: bool = False


@dataclass(frozen=True)
class InputRule:
    """One argument of ``forward``.

    Attributes:
        name: of the argument.
        law: how values are drawn.
        dtypes: that ran, the usual one first (``float32``, ``int64``, ``bool``, ``complex64``).
        low, high: of integers, ``low <= x < high``; dimension expressions.
        optional: the argument may be left out (a form does so by ``None`` for its shape).
    """

    name: str
    law: Law = Law.NORMAL
    dtypes: tuple[str, ...] = ("float32",)
    low: str = "0"
    high: str = ""
    optional: bool = False


Shape = tuple[str, ...]
"""Dimension expressions over size names: ``("batch", "2 * channels", "3")``."""


@dataclass(frozen=True)
class Form:
    """A combination of ranks that runs.

    Attributes:
        shapes: of the inputs, in order; ``None`` where an optional one is left out.
        options: options that this form needs (``dim`` for its rank).
    """

    shapes: tuple[Shape | None, ...]
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """What a seed does, measured at its base setting.

    Attributes:
        outputs: dtype of each tensor that it gives.
        output_ranks: rank of each.
        shape_preserving: the first output has the shape of the first input, at every size tried.
        reduces: the first output has fewer elements than the first input, at every size tried.
        elementwise: an element of the first output depends on the same element of the first input alone.
        linear: in its first input: additive and homogeneous, offset allowed where ``offset``.
        offset: zeros in the first input do not give zeros out.
        idempotent: a second application changes nothing.
        moves_only: every output element is an element of an input (views, permutations, padding aside).
        has_parameters, has_buffers: state.
        by_mode: train and eval mode differ.
        fake: shapes follow without running it (FakeTensor); false where they depend on values.
        differentiable: a gradient reaches the first input.
    """

    outputs: tuple[str, ...] = ("float32",)
    output_ranks: tuple[int, ...] = ()
    shape_preserving: bool = False
    reduces: bool = False
    elementwise: bool = False
    linear: bool = False
    offset: bool = False
    idempotent: bool = False
    moves_only: bool = False
    has_parameters: bool = False
    has_buffers: bool = False
    by_mode: bool = False
    fake: bool = True
    differentiable: bool = True


@dataclass(frozen=True)
class Spelling:
    """How a person writes a torch operator inline.

    Attributes:
        target: ``nn.Conv2d``, ``F.gelu``, ``torch.cumsum``.
        is_module: constructed once in ``__init__``, else called in ``forward``.
        positional: arguments given by position, of the constructor or of the call, sizes, options and
            inputs alike, in order.
        listed: inputs that the call takes as one list (``torch.cat([a, b])``).
    """

    target: str
    is_module: bool
    positional: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One way to use a seed: index of its form, sizes and options by name."""

    form: int
    sizes: Mapping[str, int]
    options: Mapping[str, Value]


def same(a: Value, b: Value) -> bool:
    """Equality that tells ``True`` from 1 and 1 from 1.0."""
    return type(a) is type(b) and bool(a == b)
