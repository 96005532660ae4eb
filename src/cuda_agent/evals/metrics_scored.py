"""Attempts with their tasks, seen under one pick and one time metric. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.evals.metrics_records import (
    UNCOUNTED,
    Baseline,
    EvalAttempt,
    EvalRun,
    EvalTask,
    Pick,
    Verdict,
)
from cuda_agent.result import Result, Times


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
            return _ratio(_rescaled(self.task, self.result, f"{baseline}_kernel"), self.result.kernel_us)
        if baseline is Baseline.MAX_AUTOTUNE:
            return _ratio(_rescaled(self.task, self.result, baseline), self.result.candidate_us)
        return self.result.speedup(baseline)

    def comparable(self, baseline: Baseline) -> bool:
        """Whether it can be said if this attempt is faster: a failure is not; a baseline never measured
        leaves it open. (torch.compile failing on a task while eager was timed is known: not faster.)
        """
        if baseline is Baseline.MAX_AUTOTUNE and self.task.baseline_us(baseline) is None:
            return False
        if not self.correct or self.speedup(baseline) is not None:
            return True
        return (
            baseline is Baseline.COMPILE and self.speedup(Baseline.EAGER) is not None and not self.kernel_time
        )

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


def _rescaled(task: EvalTask, result: Result, name: str) -> float | None:
    """A baseline measured once a task, microseconds, by eager now over eager then."""
    then, eager_then, eager_now = task.baseline_us(name), task.baseline_us("eager"), result.eager_us
    if then is None or eager_then is None or eager_now is None:
        return None
    return then * eager_now.median / eager_then


def _ratio(base_us: float | None, times: Times | None) -> float | None:
    return None if base_us is None or times is None or times.median <= 0 else base_us / times.median


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
