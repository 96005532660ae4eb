"""Which sizes of a trial move together: found by changing them and running again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.trial import Trial, runs

_WINDOW = 3
_MOST_OTHERS = 3

Slot = tuple[str, str | int, int]
"""``("option", name, 0)`` or ``("input", index, axis)``."""


@dataclass(frozen=True)
class Tie:
    """Slots that hold one size.

    Attributes:
        slots: in order; empty of arguments where no option is among them.
        base: value in the trial.
        multiple_of: values that ran are multiples of this.
        least: smallest that ran.
    """

    slots: tuple[Slot, ...]
    base: int
    multiple_of: int
    least: int

    @property
    def argument(self) -> str:
        """The option among the slots; empty where there is none."""
        return next((str(name) for kind, name, _ in self.slots if kind == "option"), "")


def slots_of(trial: Trial, arguments: Sequence[str]) -> dict[Slot, int]:
    """Every size of a trial.

    Args:
        trial: that runs.
        arguments: options that are sizes.
    """
    found: dict[Slot, int] = {}
    for name in arguments:
        value = trial.options.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            found["option", name, 0] = value
    for index, given in enumerate(trial.givens):
        for axis, size in enumerate(given.shape if given is not None else ()):
            found["input", index, axis] = size
    return found


def changed(trial: Trial, values: dict[Slot, int]) -> Trial:
    """The trial with sizes changed."""
    for (kind, where, axis), value in values.items():
        if kind == "option":
            trial = trial.with_options({str(where): value})
            continue
        given = trial.givens[int(where)]
        assert given is not None
        shape = (*given.shape[:axis], value, *given.shape[axis + 1 :])
        trial = trial.with_given(int(where), replace(given, shape=shape))
    return trial


def ties(subject: Subject, trial: Trial, arguments: Sequence[str]) -> list[Tie]:
    """Sizes that may change: each alone where that runs, else with the fewest others of the same value.

    What cannot be changed at all stays a number, and so does a small size that a later input has to itself:
    it is a window, or a number of coordinates.
    """
    slots = slots_of(trial, arguments)
    first = next((i for i, given in enumerate(trial.givens) if given is not None), 0)
    left, found = dict(slots), []
    for slot, value in slots.items():
        if slot not in left or value < 2:
            continue
        group = _group(lambda values: runs(subject, changed(trial, values)), slot, value, left)
        own_small = value <= _WINDOW and all(kind == "input" and where != first for kind, where, _ in group)
        if not group or own_small:
            continue
        left = {s: v for s, v in left.items() if s not in group}

        def at(size: int, group: tuple[Slot, ...] = group) -> bool:
            return runs(subject, changed(trial, dict.fromkeys(group, size)))

        step = next((s for s in (1, 2, 4, 3) if value % s == 0 and at(value + s)), value)
        least = next((v for v in range(step, value, step) if at(v) and at(v + step)), value)
        found.append(Tie(group, value, step, least))
    return found


def _group(
    holds: Callable[[dict[Slot, int]], bool], slot: Slot, value: int, left: dict[Slot, int]
) -> tuple[Slot, ...]:
    """The fewest slots to change with this one, up and down, else up alone; empty where none does."""
    others = [s for s, v in left.items() if v == value and s != slot]
    up = [value + 1, value + 2, 2 * value, 3 * value]
    down = [v for v in dict.fromkeys((value - 1, value - 2, value // 2, value - 4)) if v > 0]
    only_up: tuple[Slot, ...] = ()
    for group in _groups(slot, others):
        if not any(holds(dict.fromkeys(group, other)) for other in up):
            continue
        if any(holds(dict.fromkeys(group, other)) for other in down):
            return group
        only_up = only_up or group
    return only_up


def _groups(slot: Slot, others: Sequence[Slot]) -> Iterator[tuple[Slot, ...]]:
    """A slot with none, one, two, ... of the others; with many others, then with all."""
    for number in range(min(len(others), _MOST_OTHERS) + 1):
        for chosen in itertools.combinations(others, number):
            yield (slot, *chosen)
    if len(others) > _MOST_OTHERS:
        yield (slot, *others)
