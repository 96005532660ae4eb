"""Metrics of an evaluation: pure functions over its records; definitions in docs/evaluation.md.

Every rate is a mean over tasks of the mean over a task's samples, so that tasks weigh the same however
many samples each has. Attempts that our own side lost are in no rate; they are counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cuda_agent.evals.metrics_bootstrap import draw, interval, mean_over_tasks, resampled_means
from cuda_agent.evals.metrics_estimators import Interval, best_at_k, is_faster, pass_at_k
from cuda_agent.evals.metrics_records import Baseline, EvalAttempt, Verdict
from cuda_agent.evals.metrics_scored import Scored, counted

MARGIN = 0.05
FAST_P = (0.0, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0)


@dataclass(frozen=True)
class Estimate:
    """One number.

    Attributes:
        value: ``None`` where nothing defines it.
        interval: 95 % bootstrap interval; ``None`` with fewer than two tasks.
        num_tasks: tasks with at least one sample in it.
    """

    value: float | None
    interval: Interval | None
    num_tasks: int


@dataclass(frozen=True)
class Measure:
    """A metric that is a mean over tasks.

    Attributes:
        about: what it is, a few words.
        of: its value of one attempt; ``None`` leaves the attempt out.
        geometric: values are logarithms, the mean is turned back.
        known: what must be known of one correct attempt at least, so that a share of nothing measured is
            not told as 0.
    """

    about: str
    of: Callable[[Scored], float | None]
    geometric: bool = False
    known: Callable[[Scored], float | None] | None = None

    def values(self, groups: Sequence[Sequence[Scored]]) -> list[list[float | None]]:
        """By task and sample."""
        correct = [s for g in groups for s in g if s.correct]
        if self.known is not None and correct and all(self.known(s) is None for s in correct):
            return [[None for _ in g] for g in groups]
        return [[self.of(s) for s in g] for g in groups]


def _faster(baseline: Baseline, margin: float) -> Callable[[Scored], float | None]:
    def value(scored: Scored) -> float | None:
        if not scored.comparable(baseline):
            return None
        speedup = scored.speedup(baseline)
        return float(speedup is not None and is_faster(speedup, margin))

    return value


def _surely_faster(baseline: Baseline, margin: float) -> Callable[[Scored], float | None]:
    def value(scored: Scored) -> float:
        low = scored.lower_bound(baseline)
        return float(low is not None and is_faster(low, margin))

    return value


def _log_speedup(baseline: Baseline, *, failures: bool) -> Callable[[Scored], float | None]:
    def value(scored: Scored) -> float | None:
        if not scored.correct:
            return 0.0 if failures and scored.comparable(baseline) else None
        speedup = scored.speedup(baseline)
        return None if speedup is None else math.log(speedup)

    return value


def _log_share(scored: Scored) -> float | None:
    share = scored.roofline_share()
    return None if share is None else math.log(share)


def _baseline_measures(b: Baseline) -> dict[str, Measure]:
    words = "torch.compile" if b is Baseline.COMPILE else b.replace("_", "-")

    def known(scored: Scored) -> float | None:
        return scored.speedup(b)

    return {
        f"faster_{b}": Measure(f"faster than {words}", _faster(b, 0.0), known=known),
        f"faster5_{b}": Measure(f"more than 5 % faster than {words}", _faster(b, MARGIN), known=known),
        f"geomean_{b}": Measure(f"geomean vs {words}, correct", _log_speedup(b, failures=False), True),
        f"geomean_all_{b}": Measure(
            f"geomean vs {words}, failures as 1", _log_speedup(b, failures=True), True, known
        ),
    }


def _surely_measures(b: Baseline) -> dict[str, Measure]:
    words = "torch.compile" if b is Baseline.COMPILE else str(b)

    def known(scored: Scored) -> float | None:
        return scored.lower_bound(b)

    return {
        f"surely_{b}": Measure(f"surely faster than {words}", _surely_faster(b, 0.0), known=known),
        f"surely5_{b}": Measure(
            f"surely more than 5 % faster than {words}", _surely_faster(b, MARGIN), known=known
        ),
    }


def _measures() -> dict[str, Measure]:
    table = {"pass": Measure("pass rate", lambda s: float(s.correct))}
    for b in Baseline:
        table |= _baseline_measures(b)
    for b in (Baseline.EAGER, Baseline.COMPILE):
        table |= _surely_measures(b)
    table["reward"] = Measure("reward", lambda s: s.reward)
    table["roofline"] = Measure("share of the memory floor, geomean of correct", _log_share, True)
    return table


MEASURES = _measures()


@dataclass(frozen=True)
class Spent:
    """What the attempts cost, all of them together, infrastructure faults included.

    Attributes:
        cost_usd: ``None`` where no attempt has a price; ``num_unpriced`` says how many have none.
    """

    judge_calls: int
    turns: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    cost_usd: float | None
    num_unpriced: int


@dataclass(frozen=True)
class Summary:
    """All metrics of one set of tasks.

    Attributes:
        num_tasks: tasks in the set; ``num_scored`` of them have at least one attempt that counts.
        counts: attempts by verdict.
        estimates: by name of :data:`MEASURES`.
        fast_p: by baseline, (p, share) points over scored tasks.
        pass_at_k, reward_at_k: by k, over tasks with at least k counted samples.
        spent: tokens, turns, seconds, cost.
    """

    num_tasks: int
    num_scored: int
    counts: dict[Verdict, int]
    estimates: dict[str, Estimate]
    fast_p: dict[Baseline, list[tuple[float, float]]] = field(default_factory=dict)
    pass_at_k: dict[int, Estimate] = field(default_factory=dict)
    reward_at_k: dict[int, Estimate] = field(default_factory=dict)
    spent: Spent | None = None


def summarise(groups: Sequence[Sequence[Scored]]) -> Summary:
    """All metrics of the groups that :func:`score` made."""
    groups = [list(g) for g in groups]
    scored = counted(groups)
    every = [s for g in groups for s in g]
    return Summary(
        num_tasks=len(groups),
        num_scored=len(scored),
        counts={v: sum(s.verdict is v for s in every) for v in Verdict},
        estimates=estimates(scored),
        fast_p={b: fast_p_curve(scored, b) for b in Baseline},
        pass_at_k=at_k(scored, _pass_at),
        reward_at_k=at_k(scored, _reward_at),
        spent=spent([s.attempt for s in every]),
    )


def estimates(scored: Sequence[Sequence[Scored]]) -> dict[str, Estimate]:
    """Every measure with its interval, over one set of draws."""
    draws = draw([len(g) for g in scored]) if len(scored) > 1 else None
    found = {}
    for name, measure in MEASURES.items():
        values = measure.values(scored)
        value = mean_over_tasks(values)
        spread = interval(resampled_means(values, draws)) if draws is not None else None
        if measure.geometric:
            value = None if value is None else math.exp(value)
            spread = None if spread is None else Interval(math.exp(spread.low), math.exp(spread.high))
        known = sum(any(v is not None for v in vs) for vs in values)
        found[name] = Estimate(value, spread, known)
    return found


def fast_p_curve(scored: Sequence[Sequence[Scored]], baseline: Baseline) -> list[tuple[float, float]]:
    """(p, share of tasks correct and more than p times as fast), for p in :data:`FAST_P`."""
    points = []
    for p in FAST_P:
        share = mean_over_tasks([[float((s.speedup(baseline) or 0.0) > p) for s in g] for g in scored])
        points += [] if share is None else [(p, share)]
    return points


def at_k(
    scored: Sequence[Sequence[Scored]], of: Callable[[Sequence[Scored], int], float | None]
) -> dict[int, Estimate]:
    """An estimator of k of n samples, for k in 1, 2, 4, ... up to the most samples a task has."""
    most = max((len(g) for g in scored), default=0)
    ks = sorted({2**i for i in range(most.bit_length())} | {most}) if most > 1 else []
    found = {}
    for k in ks:
        values = [[of(g, k)] for g in scored if len(g) >= k]
        spread = interval(resampled_means(values, draw([1] * len(values)))) if len(values) > 1 else None
        found[k] = Estimate(mean_over_tasks(values), spread, len(values))
    return found


def _pass_at(group: Sequence[Scored], k: int) -> float:
    return pass_at_k(len(group), sum(s.correct for s in group), k)


def _reward_at(group: Sequence[Scored], k: int) -> float | None:
    rewards = [s.reward for s in group if s.reward is not None]
    return best_at_k(rewards, k) if len(rewards) >= k else None


def spent(attempts: Sequence[EvalAttempt]) -> Spent:
    """Sums over attempts."""
    costs = [a.cost_usd for a in attempts if a.cost_usd is not None]
    return Spent(
        judge_calls=sum(a.judge_calls for a in attempts),
        turns=sum(a.turns for a in attempts),
        prompt_tokens=sum(a.prompt_tokens for a in attempts),
        completion_tokens=sum(a.completion_tokens for a in attempts),
        seconds=math.fsum(a.seconds for a in attempts),
        cost_usd=math.fsum(costs) if costs else None,
        num_unpriced=len(attempts) - len(costs),
    )
