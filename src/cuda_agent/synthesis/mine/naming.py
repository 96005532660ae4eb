"""Names of a seed's sizes: of the constructor's argument, else of what the axis is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.ties import Slot, Tie
from cuda_agent.synthesis.mine.trial import Trial
from cuda_agent.synthesis.words import words

_AXES = {
    1: ("length",),
    2: ("batch", "features"),
    3: ("batch", "length", "features"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}
_CHANNELS_FIRST = {3: ("batch", "channels", "length")}
_OF_INDICES = {2: ("batch", "length")}
_PLAIN = words(
    "input other input1 input2 tensor x x1 x2 a b A B first second tensor1 tensor2 vec2 self mat1 mat2"
)


def spatial(target: str) -> int | None:
    """Number of dimensions that an operator's name says it works in: 2 of ``nn.Conv2d``."""
    found = re.search(r"(?i)([123])d(_|$)", target)
    return int(found[1]) if found else None


def named(subject: Subject, trial: Trial, groups: Sequence[Tie]) -> list[str]:
    """A name for each group of sizes, all different."""
    axes = _Axes(subject, trial, groups)
    names: list[str] = []
    for group in groups:
        plain = group.argument or axes.name(group)
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}{number}", number + 1
        names.append(name)
    return names


class _Axes:
    """What the axes of a trial's inputs are."""

    def __init__(self, subject: Subject, trial: Trial, groups: Sequence[Tie]) -> None:
        self._subject = subject
        self._trial = trial
        self._ranks = [0 if given is None else len(given.shape) for given in trial.givens]
        self._of_indices = trial.givens[0] is not None and trial.givens[0].law is Law.INTEGERS
        self._first = next(i for i, rank in enumerate(self._ranks) if rank)
        tied = {slot for group in groups if group.argument for slot in group.slots}
        by_name = spatial(subject.target) is not None
        self._channels_first = by_name or ("input", self._first, 1) in tied

    def name(self, group: Tie) -> str:
        """Of a group without an argument."""
        slot = group.slots[0]
        _, where, axis = slot
        if where == self._first:
            return self._axis(self._ranks[self._first], axis)
        return self._later(slot, group)

    def _axis(self, rank: int, axis: int) -> str:
        axes = _AXES.get(rank, ())
        if self._channels_first:
            axes = _CHANNELS_FIRST.get(rank, axes)
        elif self._of_indices:
            axes = _OF_INDICES.get(rank, axes)
        return axes[axis] if axis < len(axes) else "size"

    def _later(self, slot: Slot, group: Tie) -> str:
        """Of an axis that the first input does not have."""
        _, where, axis = slot
        rank = self._ranks[int(where)]
        parameter = self._subject.inputs[int(where)].name
        given = self._trial.givens[int(where)]
        floating = given is not None and given.type_name.startswith("float")
        if self._of_indices and parameter == "weight" and rank == 2:
            return ("num_embeddings", "embedding_dim")[axis]
        if floating and parameter not in self._subject.listed() and rank >= 2:
            if len({index for _, index, _ in group.slots}) > 1 and len({a for _, _, a in group.slots}) > 1:
                return "inner_features"
            if len(group.slots) == 1 and axis in (0, rank - 1):
                return "out_channels" if self._channels_first else "out_features"
        plain = parameter in _PLAIN or len(parameter) < 3
        return f"{'other' if plain else parameter}_{self._axis(rank, axis)}"
