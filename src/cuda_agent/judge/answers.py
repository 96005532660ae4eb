"""What a candidate's process answers, taken with distrust: it may lie in form as well as in content."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda_agent.judge.processes import WorkerDied
from cuda_agent.result import Fault

_FORM = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError)


@contextmanager
def reading(op: str) -> Iterator[None]:
    """Around the lines that take an answer apart.

    Raises:
        WorkerDied: the answer has a form that no worker gives: the process is not to be believed any more.
    """
    try:
        yield
    except _FORM as error:
        what = f"the process gave an answer to {op!r} of a form that no worker gives ({type(error).__name__})"
        raise WorkerDied(Fault.CRASH, what) from None


def samples_of(values: Sequence[Any], count: int) -> list[float]:
    """Microseconds of ``count`` calls.

    Raises:
        ValueError: another number of them, or one that is not a finite time.
    """
    samples = [float(value) for value in values]
    if len(samples) != count or not all(math.isfinite(sample) and sample >= 0.0 for sample in samples):
        raise ValueError("not the times of so many calls")
    return samples


def sets_of(values: Sequence[Any], num_sets: int, most: int) -> list[int]:
    """Input sets of the outputs held, one to ``most`` of them.

    Raises:
        ValueError: none, too many, or a set that does not exist.
    """
    held = [int(value) for value in values]
    if not 0 < len(held) <= most or not all(0 <= index < num_sets for index in held):
        raise ValueError("not input sets that were given")
    return held
