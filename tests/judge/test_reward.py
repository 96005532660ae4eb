"""Rewards at and beside the 5 % line."""

from __future__ import annotations

import math

import pytest

from cuda_agent.judge.reward import RewardKind, faster, graded, milestone, raw_speedup, reward_of
from cuda_agent.result import Result, Stage, Times


@pytest.mark.parametrize(
    ("t", "t0", "expected"),
    [
        (95.0, 100.0, False),
        (94.9, 100.0, True),
        (100.0, 100.0, False),
        (190.0, 200.0, False),
        (1.0, 1e6, True),
    ],
)
def test_faster_is_strict(t, t0, expected):
    assert faster(t, t0) is expected


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((90.0, 100.0, 100.0), 3),
        ((90.0, 100.0, 90.0), 2),
        ((90.0, 100.0, None), 2),
        ((90.0, 90.0, 100.0), 1),  # beats compile only
        ((95.0, 100.0, 100.0), 1),
        ((200.0, 100.0, 100.0), 1),
    ],
)
def test_milestone(times, expected):
    assert milestone(True, *times) == expected
    assert milestone(False, *times) == -1


def test_wrong_needs_no_times():
    assert milestone(False, None, None, None) == -1
    assert raw_speedup(False, None, None) == -1.0
    assert graded(False, None, None, None) == -1.0


@pytest.mark.parametrize("times", [(None, 1.0, 1.0), (1.0, None, 1.0), (0.0, 1.0, 1.0), (1.0, math.nan, 1.0)])
def test_missing_or_absurd_times_are_refused(times):
    with pytest.raises(ValueError):
        milestone(True, *times)


def test_raw_speedup():
    assert raw_speedup(True, 50.0, 100.0) == 2.0
    assert raw_speedup(True, 100.0, 50.0) == 0.5


def test_graded_continues_the_milestones():
    assert graded(True, 100.0, 100.0, 100.0) == 1.0
    assert graded(True, 90.0, 100.0, 50.0) == 2.0
    assert graded(True, 47.5, 100.0, 200.0) == pytest.approx(4.0)  # 0.95 * 100 / 47.5 = 2
    assert graded(True, 94.99, 100.0, 100.0) == pytest.approx(3.0, abs=1e-3)
    assert graded(True, 1e-3, 100.0, 100.0) == 5.0


def timed(candidate: float, eager: float, compile: float | None) -> Result:
    return Result(
        stage=Stage.DONE,
        correct=True,
        candidate_us=Times.of([candidate]),
        eager_us=Times.of([eager]),
        compile_us=None if compile is None else Times.of([compile]),
    )


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((25.0, 100.0, 50.0), (3.0, 2.0, 3.9259994)),  # 3 + log2(0.95 * 50 / 25)
        ((25.0, 100.0, None), (2.0, 4.0, 2.0)),
        ((100.0, 100.0, 50.0), (1.0, 0.5, 1.0)),
    ],
)
def test_reward_of_a_verdict_by_kind(times, expected):
    kinds = (RewardKind.MILESTONE, RewardKind.RAW_SPEEDUP, RewardKind.GRADED)
    assert tuple(reward_of(timed(*times), kind) for kind in kinds) == pytest.approx(expected)


@pytest.mark.parametrize("kind", RewardKind)
def test_reward_of_wrong_and_failed_verdicts(kind):
    assert reward_of(Result(stage=Stage.VERIFY, correct=False), kind) == -1.0
    assert reward_of(Result(stage=Stage.BUILD, infrastructure="disk full"), kind) is None
    assert reward_of(Result(stage=Stage.VERIFY, correct=True), kind) is None  # nothing was timed
