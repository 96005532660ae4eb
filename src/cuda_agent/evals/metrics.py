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
from cuda_agent.evals.metrics_records import (
    UNCOUNTED,
    Baseline,
    EvalAttempt,
    EvalRun,
    EvalTask,
    Pick,
    Verdict,
)
from cuda_agent.result import Result

MARGIN = 0.05
FAST_P = (0.0, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0)


@dataclass(frozen=True)
class Scored:
    """One attempt with its task, seen under one pick.

    Attributes:
        task, attempt, verdict: what is scored.
        result: the verdict that counts; ``None`` where there is none.
        kernel_time: speed-ups by summed kernel time (the paper's own time metric), not device span.
    """

    task: EvalTask
    attempt: EvalAttempt
    verdict: Verdict
    result: Result | None
    kernel_time: bool = False

    @property
    def correct(self) -> bool:
        """Whether it passed."""
        return self.verdict is Verdict.CORRECT

    def speedup(self, baseline: Baseline) -> float | None:
        """Baseline time over candidate time; ``None`` where wrong or not measured."""
        if not self.correct or self.result is None:
            return None
        if self.kernel_time:
            return _kernel_speedup(self.task, self.result, baseline)
        if baseline is not Baseline.MAX_AUTOTUNE:
            return self.result.speedup(baseline)
        return _max_autotune_speedup(self.task, self.result)

    def lower_bound(self, baseline: Baseline) -> float | None:
        """Lower bound of the 95 % interval of the speed-up; ``None`` where it was not measured."""
        if not self.correct or self.result is None or self.result.confidence is None or self.kernel_time:
            return None
        bounds = self.result.confidence.get(baseline)
        return None if bounds is None else bounds[0]

    def roofline_share(self) -> float | None:
        """floor / candidate time: 1 is the memory floor reached; ``None`` where not measured."""
        floor = self.task.baseline_us("floor")
        if not self.correct or floor is None or self.result is None or self.result.candidate_us is None:
            return None
        return floor / self.result.candidate_us.median

    @property
    def reward(self) -> float | None:
        """The reward; -1 where no candidate was written."""
        if self.verdict is Verdict.NO_CANDIDATE:
            return -1.0
        return None if self.result is None or self.result.reward is None else float(self.result.reward)


def _max_autotune_speedup(task: EvalTask, result: Result) -> float | None:
    """Rescaled by eager then over eager now: the two were measured at different times."""
    tuned, eager = task.baseline_us("max_autotune"), task.baseline_us("eager")
    speedup = result.speedup(Baseline.EAGER)
    return None if tuned is None or eager is None or speedup is None else speedup * tuned / eager


def _kernel_speedup(task: EvalTask, result: Result, baseline: Baseline) -> float | None:
    """Summed kernel time of the baseline over the candidate's."""
    base = result.other_us.get(f"{baseline}_kernel") or task.baseline_us(f"{baseline}_kernel")
    if not base or result.kernel_us is None or result.kernel_us.median <= 0:
        return None
    return base / result.kernel_us.median


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
    """

    about: str
    of: Callable[[Scored], float | None]
    geometric: bool = False


def _faster(baseline: Baseline, margin: float) -> Callable[[Scored], float | None]:
    def value(scored: Scored) -> float:
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
            return 0.0 if failures else None
        speedup = scored.speedup(baseline)
        return None if speedup is None else math.log(speedup)

    return value


def _log_share(scored: Scored) -> float | None:
    share = scored.roofline_share()
    return None if share is None else math.log(share)


def _measures() -> dict[str, Measure]:
    table = {"pass": Measure("pass rate", lambda s: float(s.correct))}
    for b in Baseline:
        words = b.replace("_", "-")
        table[f"faster_{b}"] = Measure(f"faster than {words}", _faster(b, 0.0))
        table[f"faster5_{b}"] = Measure(f"more than 5 % faster than {words}", _faster(b, MARGIN))
        table[f"geomean_{b}"] = Measure(f"geomean vs {words}, correct", _log_speedup(b, failures=False), True)
        table[f"geomean_all_{b}"] = Measure(
            f"geomean vs {words}, failures as 1", _log_speedup(b, failures=True), True
        )
    for b in (Baseline.EAGER, Baseline.COMPILE):
        table[f"surely_{b}"] = Measure(f"interval above {b}", _surely_faster(b, 0.0))
        table[f"surely5_{b}"] = Measure(f"interval above {b} by 5 %", _surely_faster(b, MARGIN))
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


def score(
    run: EvalRun, tasks: Sequence[EvalTask], *, pick: Pick = Pick.BEST, kernel_time: bool = False
) -> list[list[Scored]]:
    """Attempts of each task, in the tasks' order; those that do not count included."""
    by_task: dict[str, list[EvalAttempt]] = {}
    for attempt in run.attempts:
        by_task.setdefault(attempt.id, []).append(attempt)
    return [
        [Scored(t, a, a.verdict(pick), a.result(pick), kernel_time) for a in by_task.get(t.id, ())]
        for t in tasks
    ]


def counted(groups: Sequence[Sequence[Scored]]) -> list[list[Scored]]:
    """Without attempts that do not count, and without tasks that have nothing left."""
    kept = ([s for s in g if s.verdict not in UNCOUNTED] for g in groups)
    return [g for g in kept if g]


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
        values = [[measure.of(s) for s in g] for g in scored]
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
