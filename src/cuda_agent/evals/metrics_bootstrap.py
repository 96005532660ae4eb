"""Hierarchical bootstrap of means over tasks: tasks first, then the samples in each drawn task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.evals.metrics_estimators import Interval

try:
    import numpy as np
except ModuleNotFoundError:
    raise UsageError("reports need numpy", "Install it: pip install 'cuda-agent[torch]'.") from None

NUM_RESAMPLES = 1000
SEED = 20260227
Values = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Draws:
    """Resamples of one set of tasks, shared by every metric over it (differences are then paired).

    Attributes:
        tasks: int[resamples, tasks], which task each place holds.
        samples: int[resamples, tasks, most samples], which of that task's samples each place holds;
            places past the task's number of samples repeat none: they are masked by ``counts``.
        counts: int[tasks], samples of each task.
    """

    tasks: Any
    samples: Any
    counts: Any


def draw(
    counts: Sequence[int],
    *,
    paired: Draws | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = SEED,
) -> Draws:
    """Resample tasks with ``counts`` samples each.

    Args:
        counts: samples of each task.
        paired: draws over the same tasks, in the same order, of another run: its tasks are taken, the
            samples inside them are drawn anew.
        num_resamples, seed: of new draws.

    Raises:
        ValueError: no tasks, a task without samples, or another number of tasks than ``paired`` has.
    """
    if not counts or min(counts) < 1:
        raise ValueError("a bootstrap needs tasks with at least one sample")
    if paired is not None and len(paired.counts) != len(counts):
        raise ValueError("paired draws need the same tasks")
    generator = np.random.default_rng(seed if paired is None else [seed, 1])
    num = np.asarray(counts)
    tasks = (
        generator.integers(len(counts), size=(num_resamples, len(counts))) if paired is None else paired.tasks
    )
    uniform = generator.random((*tasks.shape, max(counts)))
    return Draws(tasks, (uniform * num[tasks][:, :, None]).astype(np.int64), num)


def mean_over_tasks(values: Values) -> float | None:
    """Mean over tasks of the mean over a task's samples; ``None`` samples are left out."""
    means = []
    for samples in values:
        known = [v for v in samples if v is not None]
        if known:
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else None


def resampled_means(values: Values, draws: Draws) -> Any:
    """:func:`mean_over_tasks` of every resample, float[resamples]; NaN where it is not defined.

    Args:
        values: by task and sample, in the order ``draws`` was made for.
    """
    table = np.full((len(values), int(draws.counts.max())), np.nan)
    for row, samples in enumerate(values):
        table[row, : len(samples)] = [np.nan if v is None else v for v in samples]
    drawn = table[draws.tasks[:, :, None], draws.samples]
    places = np.arange(drawn.shape[2]) < draws.counts[draws.tasks][:, :, None]
    return _mean(_mean(np.where(places, drawn, np.nan)))


def interval(resampled: Any) -> Interval | None:
    """The middle 95 % of resampled values; ``None`` where no resample has one."""
    known = resampled[np.isfinite(resampled)]
    if not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(float(low), float(high))


def _mean(values: Any) -> Any:
    """Mean over the last axis, NaN left out; NaN of none."""
    known = np.isfinite(values)
    counts = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
