"""The difference of one metric between two sides, with a paired bootstrap interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuda_agent.evals.metrics import MEASURES
from cuda_agent.evals.metrics_bootstrap import Values, draw, interval, mean_over_tasks, resampled_means
from cuda_agent.evals.metrics_estimators import Interval


@dataclass(frozen=True)
class Difference:
    """One metric of two sides over the same tasks.

    Attributes:
        name: of the measure; ``about`` in words.
        first, second: its values.
        change: second minus first, or second over first where the mean is geometric.
        interval: 95 % interval of ``change``, tasks drawn together for both sides; ``None`` with fewer
            than two tasks.
    """

    name: str
    about: str
    geometric: bool
    first: float | None
    second: float | None
    change: float | None
    interval: Interval | None


def difference(name: str, first: Values, second: Values) -> Difference:
    """Difference of a measure of :data:`cuda_agent.evals.metrics.MEASURES`.

    Args:
        name: of the measure.
        first, second: its values by task and sample (logarithms where it is geometric), the same tasks in
            the same order; samples are drawn apart.

    Raises:
        ValueError: the sides have not as many tasks, or a task has no sample.
    """
    measure = MEASURES[name]
    means = [mean_over_tasks(first), mean_over_tasks(second)]
    change = None if means[0] is None or means[1] is None else means[1] - means[0]
    spread = None
    if len(first) > 1:
        draws = draw([len(g) for g in first])
        paired = draw([len(g) for g in second], paired=draws)
        spread = interval(resampled_means(second, paired) - resampled_means(first, draws))
    if measure.geometric:
        means = [None if m is None else math.exp(m) for m in means]
        change = None if change is None else math.exp(change)
        spread = spread and Interval(math.exp(spread.low), math.exp(spread.high))
    return Difference(name, measure.about, measure.geometric, means[0], means[1], change, spread)
