"""Statistics of timing samples. Pure functions; a fixed seed gives a fixed answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_agent.result import Times

_NUM_RESAMPLES = 2000


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], *, seed: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of median(numerator) / median(denominator).

    Sequences of equal length are taken as paired blocks (interleaved measurement) and resampled
    together, so that drift common to both cancels; others independently.

    Args:
        numerator, denominator: times in the same unit, positive; a speed-up is baseline over candidate.
        seed: of the resampling.
        confidence: coverage asked for.

    Returns:
        (low, high). One sample on each side gives a point.

    Raises:
        ValueError: a sequence is empty or holds a time that is not positive.
    """
    if not numerator or not denominator or min(*numerator, *denominator) <= 0:
        raise ValueError("a ratio needs positive samples on both sides")
    generator = torch.Generator().manual_seed(seed)
    top = torch.tensor(numerator, dtype=torch.float64)
    bottom = torch.tensor(denominator, dtype=torch.float64)
    picks = _picks(len(top), generator)
    paired = len(top) == len(bottom)
    ratios = _medians(top, picks) / _medians(bottom, picks if paired else _picks(len(bottom), generator))
    tail = (1 - confidence) / 2
    low, high = torch.quantile(ratios, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return float(low), float(high)


def _picks(num: int, generator: torch.Generator) -> Tensor:
    return torch.randint(num, (_NUM_RESAMPLES, num), generator=generator)


def _medians(samples: Tensor, picks: Tensor) -> Tensor:
    """Medians of resamples, shape [resamples]; the mean of the middle two for even counts."""
    ordered = samples[picks].sort(dim=1).values
    num = ordered.shape[1]
    return (ordered[:, (num - 1) // 2] + ordered[:, num // 2]) / 2


def weighted_times(cases: Sequence[tuple[float, Times]]) -> Times:
    """Times of one call over all cases of a task: the weighted sum, sample by sample.

    Sample k of the answer is the sum of weight x sample k of each case, so that the spread is that of
    a whole round over the cases. Cases with more samples than the shortest lose their last ones.

    Args:
        cases: (weight, times) of each case; the weights sum to 1.

    Raises:
        ValueError: no cases, or weights that are not positive or do not sum to 1.
    """
    weights = [weight for weight, _ in cases]
    if not cases or min(weights) <= 0 or abs(sum(weights) - 1) > 1e-6:
        raise ValueError(f"case weights must be positive and sum to 1, not {weights}")
    rounds = zip(*(times.samples for _, times in cases), strict=False)
    return Times.of([sum(w * s for w, s in zip(weights, each, strict=True)) for each in rounds])
