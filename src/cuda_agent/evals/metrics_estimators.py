"""Estimators over plain numbers: no records, no files, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


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

    Raises:
        ValueError: not 1 <= k <= number of values.
    """
    return last_at_k(sorted(values), k)


def last_at_k(ordered: Sequence[float], k: int) -> float:
    """Expected value of the last in order among k drawn without replacement from n.

    Exact: the i-th (from 0) is the last of C(i, k - 1) of the C(n, k) draws.

    Raises:
        ValueError: not 1 <= k <= number of values.
    """
    if not 1 <= k <= len(ordered):
        raise ValueError(f"the best of {k} of {len(ordered)} values is not defined")
    total = comb(len(ordered), k)
    return math.fsum(value * (comb(i, k - 1) / total) for i, value in enumerate(ordered))


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
