"""Bounds of integer inputs (indices, classes, lengths), found by filling an input with one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.ties import Tie, changed
from cuda_agent.synthesis.mine.trial import Trial, runs

_FREE = 1000
_MOST = 64


def high_of(subject: Subject, trial: Trial, index: int, groups: Sequence[Tie], names: Sequence[str]) -> str:
    """The dimension expression that values of an integer input stay below; empty where nothing bounds them.

    Covers bounds by one size and constant ones. Not covered: operators that read out of bounds unnoticed.
    """
    given = trial.givens[index]
    if given is None or given.law is not Law.INTEGERS or _holds(subject, trial, index, _FREE):
        return ""
    for group, name in zip(groups, names, strict=True):
        larger = changed(trial, dict.fromkeys(group.slots, 2 * group.base))
        if _bounds(subject, trial, index, group.base) and _bounds(subject, larger, index, 2 * group.base):
            return name
    values = [value for value in range(1, _MOST) if _holds(subject, trial, index, value)]
    return str(values[-1] + 1) if values else str(given.high)


def _bounds(subject: Subject, trial: Trial, index: int, high: int) -> bool:
    return _holds(subject, trial, index, high - 1) and not _holds(subject, trial, index, high)


def _holds(subject: Subject, trial: Trial, index: int, value: int) -> bool:
    given = trial.givens[index]
    assert given is not None
    return runs(subject, trial.with_given(index, replace(given, fill=value)))
