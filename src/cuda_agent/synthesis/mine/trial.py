"""One trial: build an operator, draw its inputs, call it, and say what came of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.law import Law, drawing
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.seed_rules import Value

MAX_ELEMENTS = 1 << 22
"""Of an output: more, on small inputs, is no operator to seed a task with."""


@dataclass(frozen=True)
class Given:
    """One input, concretely.

    Attributes:
        shape, law: of the tensor.
        high: bound of integers.
        fill: every element has this value instead (to try bounds).
        dtype: PyTorch's name; empty for the law's usual one.
    """

    shape: tuple[int, ...]
    law: Law = Law.NORMAL
    high: int = 2
    fill: int | None = None
    dtype: str = ""

    @property
    def type_name(self) -> str:
        """Dtype of the tensor."""
        usual = {Law.INTEGERS: "int64", Law.DISTINCT: "int64", Law.BOOL: "bool", Law.COMPLEX: "complex64"}
        return self.dtype or usual.get(self.law, "float32")

    def draw(self) -> Tensor:
        """A tensor; the generator's state decides."""
        if self.fill is not None:
            return torch.full(self.shape, self.fill, dtype=getattr(torch, self.type_name))
        shape = ", ".join(str(size) for size in self.shape)
        text = drawing(self.law, shape, dtype=self.type_name, high=str(self.high))
        drawn: Tensor = eval(_compiled(text), {"torch": torch})
        return drawn


@lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType:
    return compile(text, "<law>", "eval")


@dataclass(frozen=True)
class Trial:
    """Options and inputs of one trial; ``None`` for an optional input that is left out."""

    options: Mapping[str, Value]
    givens: tuple[Given | None, ...]

    def with_given(self, index: int, given: Given | None) -> Trial:
        """The same with one input exchanged."""
        givens = (*self.givens[:index], given, *self.givens[index + 1 :])
        return replace(self, givens=givens)

    def with_options(self, options: Mapping[str, Value]) -> Trial:
        """The same with options added."""
        return replace(self, options={**self.options, **options})


class NotFinite(Exception):
    """It ran, and an output is infinite or no number."""


class NoTensor(Exception):
    """It ran, and gave no tensor."""


class TooLarge(Exception):
    """An output is far larger than the inputs."""


@dataclass(frozen=True)
class Ran:
    """What a trial that ran has given.

    Attributes:
        inputs: as they were drawn (before the call).
        outputs: tensors of the result, in order.
        made: the callable.
    """

    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    made: Callable[..., Any]


def run(subject: Subject, trial: Trial, seed: int = 0) -> Ran:
    """Run a trial; weights and inputs follow from the seed.

    Raises:
        Exception: whatever the operator raises; :class:`NotFinite`, :class:`NoTensor`, :class:`TooLarge`.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        made = subject.build(trial.options)
        torch.manual_seed(seed + 1)
        inputs = tuple(None if g is None else g.draw() for g in trial.givens)
        outputs = tuple(leaves(made(*(None if x is None else x.clone() for x in inputs))))
    check(outputs)
    return Ran(inputs, outputs, made)


def check(outputs: Sequence[Tensor]) -> None:
    """Refuse outputs that are none, too large or not finite.

    Raises:
        NoTensor, TooLarge, NotFinite: as they say.
    """
    if not outputs or not all(isinstance(x, Tensor) for x in outputs):
        raise NoTensor("it gives no tensor")
    if any(x.layout != torch.strided or x.is_quantized for x in outputs):
        raise NoTensor("it gives a sparse or quantized tensor")
    if sum(x.numel() for x in outputs) > MAX_ELEMENTS:
        raise TooLarge("its output is far larger than its inputs")
    if any(x.numel() == 0 for x in outputs):
        raise NoTensor("it gives an empty tensor")
    for x in outputs:
        if (x.is_floating_point() or x.is_complex()) and not bool(torch.isfinite(x).all()):
            raise NotFinite("its output is not finite")


def runs(subject: Subject, trial: Trial) -> bool:
    """Whether a trial runs and gives finite tensors."""
    try:
        run(subject, trial)
    except Exception:  # noqa: BLE001  an operator may refuse in any way
        return False
    return True


def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Same tensors, bit for bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )
