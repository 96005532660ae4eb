"""Seeds that compute the same by another text: told by the operators that run and what feeds them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.compose.abstract import seed_class
from cuda_agent.synthesis.law import drawing
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.words import words

_SAME_VALUES = words(
    "view _unsafe_view reshape expand unsqueeze squeeze _to_copy clone detach alias lift_fresh contiguous"
)
"""Operators whose result has the values of its input in their order."""


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Writes down every operator with the numbers of the values that it reads."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        for tensor in inputs:
            self._number(tensor)

    def _number(self, tensor: Tensor) -> int:
        self._kept.append(tensor)  # an id is one object's as long as it lives
        return self._numbers.setdefault(id(tensor), len(self._numbers))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        read = [leaf for leaf in leaves([list(args), kwargs or {}]) if isinstance(leaf, Tensor)]
        if name in _SAME_VALUES and read:
            for made in leaves(result):
                self._kept.append(made)
                self._numbers[id(made)] = self._number(read[0])
            return result
        texts = [leaf for leaf in [*args, *(kwargs or {}).values()] if isinstance(leaf, str)]
        self.lines.append(f"{name} {[self._number(x) for x in read]} {texts}")
        for made in leaves(result):
            if isinstance(made, Tensor):
                self._number(made)
        return result


def graph_of(seed: Seed) -> str:
    """A digest of what a seed runs at its base setting; sizes, dtypes and constants are left out.

    Raises:
        Exception: whatever the seed raises.
    """
    setting = seed.base()
    with torch.no_grad():
        torch.manual_seed(0)
        made = seed_class(seed)(**seed.arguments(setting)).eval()
        given = [_drawn(seed, index, shape or ()) for index, shape in enumerate(seed.shapes(setting))]
        recorder = _Recorder(given)
        with recorder:
            made(*given)
    return hashlib.sha256("\n".join(recorder.lines).encode()).hexdigest()[:16]


def _drawn(seed: Seed, index: int, shape: tuple[int, ...]) -> Tensor:
    rule = seed.inputs[index]
    low, high = seed.bounds(seed.base(), index)
    text = drawing(rule.law, ", ".join(map(str, shape)), dtype=rule.dtypes[0], low=str(low), high=str(high))
    drawn: Tensor = eval(text, {"torch": torch})
    return drawn


def same_graphs(seeds: Sequence[Seed]) -> dict[str, str]:
    """For each seed that computes what an earlier one computes, the id of that one."""
    first: dict[str, str] = {}
    found = {}
    for seed in seeds:
        mark = graph_of(seed)
        if first.setdefault(mark, seed.id) != seed.id:
            found[seed.id] = first[mark]
    return found
