"""The vectorised bootstrap against a plain loop and against closed forms."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from cuda_agent.evals.metrics_bootstrap import draw, interval, mean_over_tasks, resampled_means

VALUES = [[1.0, None, 4.0], [2.0], [None, None], [0.0, 10.0], [7.0, 7.0, 1.0]]


def test_every_resample_is_the_plain_mean_of_what_it_drew() -> None:
    draws = draw([len(v) for v in VALUES], num_resamples=50, seed=3)
    found = resampled_means(VALUES, draws)
    for r in range(50):
        drawn = []
        for place, task in enumerate(draws.tasks[r]):
            picks = draws.samples[r, place, : len(VALUES[task])]
            drawn.append([VALUES[task][i] for i in picks])
        plain = mean_over_tasks(drawn)
        assert (math.isnan(found[r]) and plain is None) or found[r] == pytest.approx(plain)


def test_mean_over_tasks_weighs_tasks_not_samples() -> None:
    # Task means 2.5, 2, (none), 5, 5.
    assert mean_over_tasks(VALUES) == pytest.approx((2.5 + 2 + 5 + 5) / 4)
    assert mean_over_tasks([[None]]) is None


def test_the_interval_of_a_share_has_the_normal_width() -> None:
    values = [[float(i % 2)] for i in range(400)]
    found = interval(resampled_means(values, draw([1] * 400)))
    assert found is not None
    half = 1.96 * math.sqrt(0.25 / 400)
    assert (found.low, found.high) == (
        pytest.approx(0.5 - half, abs=0.012),
        pytest.approx(0.5 + half, abs=0.012),
    )


def test_the_spread_inside_tasks_is_drawn_too() -> None:
    # All spread lies inside the tasks: each drawn task's mean of two has variance 1/8.
    resampled = resampled_means([[0.0, 1.0]] * 50, draw([2] * 50, num_resamples=4000))
    assert np.std(resampled) == pytest.approx(math.sqrt(0.125 / 50), rel=0.1)


def test_a_plain_loop_gives_the_same_interval() -> None:
    source = random.Random(5)
    values = [[source.random() for _ in range(source.randint(1, 4))] for _ in range(40)]
    found = interval(resampled_means(values, draw([len(v) for v in values], num_resamples=4000)))
    means = sorted(
        sum(sum(c) / len(c) for c in ([source.choice(t) for _ in t] for t in source.choices(values, k=40)))
        / 40
        for _ in range(4000)
    )
    assert found is not None
    assert found.low == pytest.approx(means[100], abs=0.01)
    assert found.high == pytest.approx(means[3900], abs=0.01)


def test_a_fixed_seed_gives_a_fixed_answer() -> None:
    counts = [len(v) for v in VALUES]
    assert interval(resampled_means(VALUES, draw(counts))) == interval(resampled_means(VALUES, draw(counts)))


def test_no_values_no_interval() -> None:
    assert interval(resampled_means([[None], [None]], draw([1, 1]))) is None
    with pytest.raises(ValueError, match="at least one sample"):
        draw([1, 0])
