"""Reward of a verdict: pure functions of times (CUDA Agent paper, arXiv 2602.24286, section 3)."""

from __future__ import annotations

import math
from enum import StrEnum

from cuda_agent.result import Result

MARGIN = 0.05
"""A candidate is faster when it saves more than this share of the baseline's time (paper, reward)."""


def faster(t: float, t0: float, margin: float = MARGIN) -> bool:
    """Whether ``t`` beats the baseline ``t0``: (t0 - t) / t0 > margin, strictly.

    Args:
        t, t0: times in the same unit, positive.
        margin: share of ``t0`` that must be saved.

    Raises:
        ValueError: a time is not positive and finite.
    """
    _check(t, t0)
    return (t0 - t) / t0 > margin


def milestone(correct: bool, candidate: float | None, eager: float | None, compile: float | None) -> int:
    """The paper's reward: -1, 1, 2 or 3.

    -1 when wrong; 3 when faster than eager and torch.compile; 2 when faster than eager only; else 1
    (also when it beats torch.compile but not eager). Without a torch.compile time it is at most 2.

    Args:
        correct: the verdict.
        candidate, eager, compile: times in the same unit; unused when wrong. ``compile`` is ``None``
            when torch.compile failed.

    Raises:
        ValueError: correct, but the candidate's or eager's time is missing.
    """
    if not correct:
        return -1
    if candidate is None or eager is None:
        raise ValueError("a correct candidate needs its own time and eager's")
    if not faster(candidate, eager):
        return 1
    return 3 if compile is not None and faster(candidate, compile) else 2


def raw_speedup(correct: bool, candidate: float | None, compile: float | None) -> float:
    """The paper's ablation reward: compile / candidate, or -1 when wrong; no cap, no logarithm.

    The paper reports it worse than the milestones: outliers, and a bias to easy kernels.

    Raises:
        ValueError: correct, but a time is missing.
    """
    if not correct:
        return -1.0
    if candidate is None or compile is None:
        raise ValueError("the raw speed-up needs the candidate's time and torch.compile's")
    _check(candidate, compile)
    return compile / candidate


def graded(
    correct: bool, candidate: float | None, eager: float | None, compile: float | None, *, cap: float = 2.0
) -> float:
    """:func:`milestone`, continued above 3 so that a faster kernel still earns more.

    Not in the paper, which is flat above the 5 % margin. At reward 3 it adds
    min(cap, log2(0.95 * min(eager, compile) / candidate)): 0 at the margin, 1 for each further halving
    of the time, bounded so that outliers do not dominate.

    Args:
        cap: most that is added.

    Raises:
        ValueError: as :func:`milestone`.
    """
    base = milestone(correct, candidate, eager, compile)
    if base < 3 or candidate is None or eager is None or compile is None:
        return float(base)
    return base + min(cap, max(0.0, math.log2((1 - MARGIN) * min(eager, compile) / candidate)))


class RewardKind(StrEnum):
    """What a verdict is worth in training.

    ``MILESTONE``: the paper's; the default. ``RAW_SPEEDUP``: the paper's ablation. ``GRADED``: milestones,
    continued above 3.
    """

    MILESTONE = "milestone"
    RAW_SPEEDUP = "raw_speedup"
    GRADED = "graded"


def reward_of(result: Result, kind: RewardKind = RewardKind.MILESTONE) -> float | None:
    """The training reward of a verdict of the full scope, from its times alone.

    Where torch.compile failed, the raw speed-up is over eager, which is then what a user has.

    Returns:
        The reward; ``None`` where there is none to give: our side failed, or nothing was timed.
    """
    if result.infrastructure is not None or result.correct is None:
        return None
    if not result.correct:
        return -1.0
    if result.candidate_us is None or result.eager_us is None:
        return None
    candidate, eager = result.candidate_us.median, result.eager_us.median
    compiled = None if result.compile_us is None else result.compile_us.median
    if kind is RewardKind.RAW_SPEEDUP:
        return raw_speedup(True, candidate, eager if compiled is None else compiled)
    if kind is RewardKind.GRADED:
        return graded(True, candidate, eager, compiled)
    return float(milestone(True, candidate, eager, compiled))


def _check(*times: float) -> None:
    for time in times:
        if not (time > 0 and math.isfinite(time)):
            raise ValueError(f"a time must be positive and finite, not {time}")
