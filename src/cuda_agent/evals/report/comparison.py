"""Two runs on the tasks that both scored: differences with paired bootstrap intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_agent.evals.metrics import MEASURES, Measure
from cuda_agent.evals.metrics_bootstrap import draw, interval, mean_over_tasks, resampled_means
from cuda_agent.evals.metrics_estimators import Interval
from cuda_agent.evals.metrics_records import EvalRun, Pick
from cuda_agent.evals.metrics_scored import counted, score

COMPARED = ("pass", "faster5_eager", "faster5_compile", "geomean_all_eager", "geomean_all_compile", "reward")


@dataclass(frozen=True)
class Difference:
    """One metric of two runs.

    Attributes:
        name: of the measure; ``about`` in words.
        first, second: its values over the common tasks.
        change: second minus first, or second over first where the mean is geometric.
        interval: 95 % interval of ``change``, tasks drawn together for both runs.
        num_tasks: tasks that both runs scored.
    """

    name: str
    about: str
    geometric: bool
    first: float | None
    second: float | None
    change: float | None
    interval: Interval | None
    num_tasks: int


def compare_runs(first: EvalRun, second: EvalRun, *, pick: Pick = Pick.BEST) -> list[Difference]:
    """Every measure of :data:`COMPARED` over the common tasks; empty where there is none."""
    ours = {g[0].task.id: g for g in counted(score(first, first.tasks, pick=pick))}
    theirs = {g[0].task.id: g for g in counted(score(second, second.tasks, pick=pick))}
    common = [key for key in ours if key in theirs]
    if not common:
        return []
    groups = ([ours[k] for k in common], [theirs[k] for k in common])
    first_draws = draw([len(g) for g in groups[0]])
    draws = [first_draws, draw([len(g) for g in groups[1]], paired=first_draws)]
    return [_difference(name, MEASURES[name], groups, draws) for name in COMPARED]


def _difference(name: str, measure: Measure, groups: Any, draws: Any) -> Difference:
    values = [measure.values(side) for side in groups]
    means = [mean_over_tasks(side) for side in values]
    num = len(values[0])
    spread = None
    if num > 1:
        resampled = [resampled_means(side, d) for side, d in zip(values, draws, strict=True)]
        spread = interval(np.subtract(resampled[1], resampled[0]))
    change = None if means[0] is None or means[1] is None else means[1] - means[0]
    if measure.geometric:
        means = [None if m is None else math.exp(m) for m in means]
        change = None if change is None else math.exp(change)
        spread = spread and Interval(math.exp(spread.low), math.exp(spread.high))
    return Difference(name, measure.about, measure.geometric, means[0], means[1], change, spread, num)
