"""Estimators over plain numbers: no records, no files, no clock. A fixed seed gives a fixed answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeVar

T = TypeVar("T")
NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A 95 % interval by bootstrap.

    Attributes:
        low, high: percentiles 2.5 and 97.5 of the resampled statistic.
    """

    low: float
    high: float


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement from n passed.

    Unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Raises:
        ValueError: not 0 <= num_passed <= num_samples, or not 1 <= k <= num_samples.
    """
    if not 0 <= num_passed <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} of {num_passed} of {num_samples} samples is not defined")
    return 1.0 - comb(num_samples - num_passed, k) / comb(num_samples, k)


def best_at_k(values: Sequence[float], k: int) -> float:
    """Expected maximum over k values drawn without replacement from n.

    Exact: with values ascending, the i-th (from 0) is the maximum of C(i, k - 1) of the C(n, k) draws.

    Raises:
        ValueError: not 1 <= k <= number of values.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"the best of {k} of {len(values)} values is not defined")
    total = comb(len(values), k)
    return math.fsum(value * (comb(i, k - 1) / total) for i, value in enumerate(sorted(values)))


def geomean(values: Sequence[float]) -> float | None:
    """Geometric mean; ``None`` of no values.

    Raises:
        ValueError: a value is not positive.
    """
    if not values:
        return None
    if min(values) <= 0:
        raise ValueError("a geometric mean needs positive values")
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def is_faster(speedup: float, margin: float = 0.0) -> bool:
    """(t0 - t) / t0 > margin, with speedup = t0 / t (the paper's reward and faster rate)."""
    return speedup > 0 and 1.0 - 1.0 / speedup > margin


def fast_p(speedups: Sequence[float | None], p: float) -> float | None:
    """Share of tasks that are correct and more than p times as fast (KernelBench's fast_p).

    Args:
        speedups: one a task; ``None`` where no correct candidate was timed, counted as not fast.
        p: threshold; 0 gives the share of correct and timed tasks.

    Returns:
        ``None`` of no tasks.
    """
    if not speedups:
        return None
    return sum(1 for s in speedups if s is not None and s > p) / len(speedups)


def bootstrap(
    groups: Sequence[Sequence[T]],
    statistic: Callable[[Sequence[Sequence[T]]], float | None],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval | None:
    """Hierarchical bootstrap: tasks are drawn with replacement, then the samples in each drawn task.

    Args:
        groups: samples by task; a task with one sample keeps it.
        statistic: of such groups; ``None`` where it is not defined (those resamples are left out).
        seed: of the resampling.
        num_resamples: how many.

    Returns:
        ``None`` with fewer than two tasks, or where no resample has the statistic.
    """
    if len(groups) < 2:
        return None
    draw = random.Random(seed)
    found = []
    for _ in range(num_resamples):
        chosen = draw.choices(groups, k=len(groups))
        resampled = [g if len(g) < 2 else draw.choices(g, k=len(g)) for g in chosen]
        if (value := statistic(resampled)) is not None:
            found.append(value)
    return percentile_interval(found)


def percentile_interval(values: Sequence[float]) -> Interval | None:
    """The middle 95 % of resampled values, linear between ranks; ``None`` of no values."""
    if not values:
        return None
    ordered = sorted(values)
    return Interval(_quantile(ordered, 0.025), _quantile(ordered, 0.975))


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
