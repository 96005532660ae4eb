"""What a candidate's process answers, taken with distrust: it may lie in form as well as in content."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda_agent.judge.channel import plain_text
from cuda_agent.judge.exchange import Plan
from cuda_agent.judge.processes import WorkerDied
from cuda_agent.result import Fault

_FORM = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError)
_MOST_TEXTS = 4096
_DEEPEST = 64
_SCALARS = ("value", "float", "dtype", "device")


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


def texts_of(values: Any) -> tuple[str, ...]:
    """Names: of operators, devices, kernels.

    Raises:
        ValueError: not a list of texts, or too many.
    """
    if not isinstance(values, list) or len(values) > _MOST_TEXTS:
        raise ValueError("not a list of names")
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a name that is no text")
    return tuple(plain_text(value) for value in values)


def form_of(plan: Any) -> Plan:
    """A plan whose containers and tensors can be compared and put in words; its memory is not looked at.

    Raises:
        ValueError: not a plan, or nested too deep to be an output.
        LookupError, TypeError, AttributeError: not a plan.
    """
    if not isinstance(plan, dict):
        raise ValueError("not a plan")
    _check_node(plan["root"], _DEEPEST)
    return plan


def _check_node(node: Any, depth: int) -> None:
    if depth == 0 or len(node) < 1 or not isinstance(node, dict):
        raise ValueError("a malformed plan")
    if "tensor" in node:
        shape = node["shape"]
        if (
            not isinstance(node["tensor"], str)
            or len(shape) > _DEEPEST
            or not all(type(size) is int for size in shape)
        ):
            raise ValueError("a malformed tensor")
    elif "list" in node or "tuple" in node or "dict" in node:
        children = node["dict"].values() if "dict" in node else node["list" if "list" in node else "tuple"]
        for child in children:
            _check_node(child, depth - 1)
    elif not any(kind in node for kind in _SCALARS):
        raise ValueError("a malformed plan")
