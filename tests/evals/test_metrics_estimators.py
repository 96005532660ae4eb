"""Estimators against values worked by hand and against brute-force enumeration."""

from __future__ import annotations

import itertools

import pytest

from cuda_agent.evals.metrics_estimators import (
    best_at_k,
    fast_p,
    geomean,
    is_faster,
    pass_at_k,
)


@pytest.mark.parametrize("num_samples", range(1, 8))
def test_pass_at_k_is_the_share_of_all_draws(num_samples: int) -> None:
    for num_passed in range(num_samples + 1):
        outcomes = [True] * num_passed + [False] * (num_samples - num_passed)
        for k in range(1, num_samples + 1):
            draws = [any(d) for d in itertools.combinations(outcomes, k)]
            assert pass_at_k(num_samples, num_passed, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


@pytest.mark.parametrize("rewards", [(-1,), (-1, 3), (3, 2, -1, 2, 1), (1, 1, 1), (-1, -1, 2, 3, 3, 1, 0.5)])
def test_best_at_k_is_the_mean_over_all_draws(rewards: tuple[float, ...]) -> None:
    for k in range(1, len(rewards) + 1):
        draws = [max(d) for d in itertools.combinations(rewards, k)]
        assert best_at_k(rewards, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_best_at_k_by_hand() -> None:
    # Draws of two of (-1, 1, 3): maxima 1, 3, 3.
    assert best_at_k([3, -1, 1], 2) == pytest.approx(7 / 3)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_undefined_draws_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


def test_geomean_by_hand() -> None:
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([]) is None
    with pytest.raises(ValueError, match="positive"):
        geomean([1.0, 0.0])


def test_the_margin_is_a_share_of_the_baseline_time() -> None:
    assert not is_faster(1.0)
    assert is_faster(1.001)
    assert not is_faster(100 / 95.1, 0.05)  # 4.9 % less time
    assert is_faster(100 / 94.9, 0.05)  # 5.1 % less time
    # A speed-up of 1.051x saves 4.85 % of the time: not 5 % faster.
    assert not is_faster(1.051, 0.05)


def test_fast_p_counts_wrong_tasks_in_the_denominator() -> None:
    speedups = [None, 0.5, 1.5, 2.0]
    assert fast_p(speedups, 0) == 0.75
    assert fast_p(speedups, 1) == 0.5
    assert fast_p(speedups, 2) == 0.0
    assert fast_p([], 1) is None
