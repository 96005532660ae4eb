"""The agent against single answers, best of as many as the same budget buys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cuda_agent.evals.metrics import MEASURES, Measure
from cuda_agent.evals.metrics_bootstrap import draw, interval, mean_over_tasks, resampled_means
from cuda_agent.evals.metrics_estimators import Interval, best_at_k, pass_at_k
from cuda_agent.evals.metrics_records import EvalAttempt, EvalRun
from cuda_agent.evals.metrics_scored import Scored, counted, score

COMPARED = ("pass", "faster5_eager", "faster5_compile", "geomean_all_compile", "reward")


class Budget(StrEnum):
    """What both sides may spend on a task."""

    JUDGE_CALLS = "judge calls"
    TOKENS = "tokens"


_SPENT: dict[Budget, Callable[[EvalAttempt], int]] = {
    Budget.JUDGE_CALLS: lambda a: a.judge_calls,
    Budget.TOKENS: lambda a: a.prompt_tokens + a.completion_tokens,
}


@dataclass(frozen=True)
class Contest:
    """One metric of the agent and of the best of k single answers, at equal budget.

    Attributes:
        budget, name, about, geometric: what is compared.
        agent, single: values over the common tasks.
        change: agent less single, or agent over single where the mean is geometric.
        interval: 95 % interval of ``change``, tasks drawn together; the estimator of a task's single
            answers is taken as it is.
        num_tasks: common tasks with a known budget.
        mean_k: single answers that the agent's spending on a task buys, mean over tasks.
        num_short: tasks with fewer single answers than that: k is then all of them, which favours the agent.
    """

    budget: Budget
    name: str
    about: str
    geometric: bool
    agent: float | None
    single: float | None
    change: float | None
    interval: Interval | None
    num_tasks: int
    mean_k: float
    num_short: int


@dataclass(frozen=True)
class _Pairing:
    agent: list[Scored]
    single: list[Scored]
    affordable: int

    @property
    def k(self) -> int:
        return min(self.affordable, len(self.single))


def equal_budget(agent: EvalRun, single: EvalRun, budget: Budget) -> list[Contest]:
    """Every measure of :data:`COMPARED`; empty where no common task has a known budget.

    The agent's spending on a task, mean over its attempts, buys k = floor(agent's / one single answer's)
    single answers, at least one. The best of k is exact over all draws of k of the n that were made.
    """
    pairs = _pairings(agent, single, budget)
    return [_contest(name, MEASURES[name], pairs, budget) for name in COMPARED] if pairs else []


def best_single(measure: str, group: Sequence[Scored], k: int) -> float | None:
    """Expected value of a measure for the best of k of a task's single answers.

    Shares are pass@k of the answers that have the property. For the speed-up the fastest correct answer
    counts, and 1.0 (a logarithm of 0) where all k fail. ``None`` where the measure is not known of one.
    """
    values = [MEASURES[measure].of(s) for s in group]
    if any(v is None for v in values):
        return None
    known = [v for v in values if v is not None]
    if measure == "reward":
        return best_at_k(known, k)
    if not MEASURES[measure].geometric:
        return pass_at_k(len(known), sum(v > 0 for v in known), k)
    # A failure's 0 must not hide a correct but slower answer: failures are the first in order.
    order = sorted(zip((s.correct for s in group), known, strict=True))
    total = math.comb(len(order), k)
    return math.fsum(v * math.comb(i, k - 1) / total for i, (_, v) in enumerate(order))


def _pairings(agent: EvalRun, single: EvalRun, budget: Budget) -> list[_Pairing]:
    spent = _SPENT[budget]
    theirs = {g[0].task.id: g for g in counted(score(single, single.tasks))}
    pairs = []
    for group in counted(score(agent, agent.tasks)):
        other = theirs.get(group[0].task.id)
        if other is None:
            continue
        ours = sum(spent(s.attempt) for s in group) / len(group)
        price = sum(spent(s.attempt) for s in other) / len(other)
        if ours > 0 and price > 0:
            pairs.append(_Pairing(group, other, max(1, int(ours / price))))
    return pairs


def _contest(name: str, measure: Measure, pairs: Sequence[_Pairing], budget: Budget) -> Contest:
    ours = measure.values([p.agent for p in pairs])
    theirs = [[best_single(name, p.single, p.k)] for p in pairs]
    means = [mean_over_tasks(ours), mean_over_tasks(theirs)]
    spread = None
    if len(pairs) > 1:
        draws = draw([len(p.agent) for p in pairs])
        paired = draw([1] * len(pairs), paired=draws)
        spread = interval(np.subtract(resampled_means(ours, draws), resampled_means(theirs, paired)))
    change = None if means[0] is None or means[1] is None else means[0] - means[1]
    if measure.geometric:
        means = [None if m is None else math.exp(m) for m in means]
        change = None if change is None else math.exp(change)
        spread = spread and Interval(math.exp(spread.low), math.exp(spread.high))
    return Contest(
        budget=budget,
        name=name,
        about=measure.about,
        geometric=measure.geometric,
        agent=means[0],
        single=means[1],
        change=change,
        interval=spread,
        num_tasks=len(pairs),
        mean_k=sum(p.k for p in pairs) / len(pairs),
        num_short=sum(p.affordable > len(p.single) for p in pairs),
    )
