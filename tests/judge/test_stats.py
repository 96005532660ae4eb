"""Statistics of times, by hand where possible."""

from __future__ import annotations

import random

import pytest

from cuda_agent.judge.stats import ratio_interval, weighted_times
from cuda_agent.result import Times


def test_constant_samples_give_a_point():
    assert ratio_interval([10.0] * 5, [5.0] * 5, seed=0) == (2.0, 2.0)
    assert ratio_interval([10.0], [4.0, 4.0], seed=0) == (2.5, 2.5)


def test_two_values_by_hand():
    # resamples of (1, 3) have medians 1, 2, 3 with probabilities 1/4, 1/2, 1/4
    assert ratio_interval([1.0, 3.0], [1.0], seed=0) == (1.0, 3.0)
    low, high = ratio_interval([1.0, 3.0], [1.0], seed=0, confidence=0.4)
    assert (low, high) == (2.0, 2.0)


def test_pairs_cancel_common_drift():
    drift = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    low, high = ratio_interval([2 * d for d in drift], drift, seed=1)
    assert low == pytest.approx(2.0) and high == pytest.approx(2.0)
    low, high = ratio_interval([2 * d for d in drift], [*drift, 2.2], seed=1)
    assert high - low > 0.5


def test_coverage_is_near_what_was_asked():
    rng, hits = random.Random(5), 0
    for trial in range(100):
        top = [2 * rng.lognormvariate(0, 0.1) for _ in range(15)]
        bottom = [rng.lognormvariate(0, 0.1) for _ in range(15)]
        low, high = ratio_interval(top, bottom, seed=trial)
        hits += low <= 2.0 <= high
    assert hits >= 88


def test_seed_fixes_the_answer():
    samples = [1.0, 1.2, 1.4, 1.1, 1.3]
    other = [0.9, 1.0, 1.1]
    assert ratio_interval(samples, other, seed=3) == ratio_interval(samples, other, seed=3)


@pytest.mark.parametrize(("top", "bottom"), [([], [1.0]), ([1.0], []), ([1.0], [0.0]), ([-1.0], [1.0])])
def test_bad_samples_are_refused(top, bottom):
    with pytest.raises(ValueError, match="positive samples"):
        ratio_interval(top, bottom, seed=0)


def test_weighted_times_by_hand():
    cases = [(0.25, Times.of([4.0, 8.0, 12.0])), (0.75, Times.of([10.0, 20.0]))]
    times = weighted_times(cases)
    assert times.samples == (0.25 * 4 + 0.75 * 10, 0.25 * 8 + 0.75 * 20)
    assert times.median == (8.5 + 17.0) / 2
    one = Times.of([3.0, 1.0, 2.0])
    assert weighted_times([(1.0, one)]) == one


@pytest.mark.parametrize("weights", [[], [0.5], [0.5, 0.6], [1.5, -0.5]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        weighted_times([(w, Times.of([1.0])) for w in weights])
