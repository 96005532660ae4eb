"""The agent against single answers, best of as many as the same budget buys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.evals.metrics import MEASURES
from cuda_agent.evals.metrics_difference import Difference, difference
from cuda_agent.evals.metrics_estimators import best_at_k, last_at_k, pass_at_k
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
class EqualBudget:
    """The agent against the best of k single answers.

    Attributes:
        num_tasks: common tasks with a known budget; 0: nothing is compared.
        mean_k: single answers that the agent's spending on a task buys, mean over tasks.
        num_short: tasks with fewer single answers than that: k is then all of them, which favours the agent.
        differences: first the single answers, second the agent, so that a gain is the agent's. The
            estimator of a task's single answers is not resampled.
    """

    num_tasks: int
    mean_k: float
    num_short: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class _Pairing:
    agent: list[Scored]
    single: list[Scored]
    affordable: int

    @property
    def k(self) -> int:
        return min(self.affordable, len(self.single))


def equal_budget(agent: EvalRun, single: EvalRun, budget: Budget) -> EqualBudget:
    """Every measure of :data:`COMPARED`.

    The agent's spending on a task, mean over its attempts, buys k = floor(agent's / one single answer's)
    single answers, at least one. The best of k is exact over all draws of k of the n that were made.
    """
    pairs = _pairings(agent, single, budget)
    if not pairs:
        return EqualBudget(0, 0.0, 0, ())
    return EqualBudget(
        num_tasks=len(pairs),
        mean_k=sum(p.k for p in pairs) / len(pairs),
        num_short=sum(p.affordable > len(p.single) for p in pairs),
        differences=tuple(_difference(name, pairs) for name in COMPARED),
    )


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
    return last_at_k([value for _, value in order], k)


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


def _difference(name: str, pairs: Sequence[_Pairing]) -> Difference:
    single = [[best_single(name, p.single, p.k)] for p in pairs]
    return difference(name, single, MEASURES[name].values([p.agent for p in pairs]))
