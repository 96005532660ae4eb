"""What an evaluation left behind, as frozen records: the settings, the tasks, one record an attempt.

The keys are those of eval.json, tasks.jsonl and attempts.jsonl (docs/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from cuda_agent.errors import UsageError
from cuda_agent.result import Result
from cuda_agent.trajectory import Ending

_T = TypeVar("_T")


class Baseline(StrEnum):
    """What a candidate is compared with."""

    EAGER = "eager"
    COMPILE = "compile"
    MAX_AUTOTUNE = "max_autotune"


class Pick(StrEnum):
    """Which version of a trajectory counts: the best (as in the paper), or the one it ended with."""

    BEST = "best"
    LAST = "last"


class Verdict(StrEnum):
    """How an attempt ended. Those of :data:`UNCOUNTED` are no failure of the policy's."""

    CORRECT = "correct"
    WRONG = "wrong"
    CHEAT = "cheat"
    NO_CANDIDATE = "no candidate"
    INFRASTRUCTURE = "infrastructure"
    TASK_ERROR = "task error"


UNCOUNTED = (Verdict.INFRASTRUCTURE, Verdict.TASK_ERROR)
"""Our own side failed, or the reference cannot be judged here: left out of every rate, and shown."""


@dataclass(frozen=True)
class EvalTask:
    """One task of an evaluation.

    Attributes:
        id: "level1/19", else a file's stem or a row's hash.
        level, problem_id: KernelBench's, where it has them.
        degenerate: by trivial answer, whether it passes as correct; ``None``: not tried.
        baselines: times by name, microseconds (eager_us, compile_us, max_autotune_us, settings_only_us,
            floor_us; summed kernel times for the paper's metric: eager_kernel_us, compile_kernel_us) and
            settings_only_name; ``None``: not measured.
    """

    id: str
    name: str = ""
    level: int | None = None
    problem_id: int | None = None
    task_hash: str | None = None
    ops: tuple[str, ...] = ()
    degenerate: Mapping[str, bool | None] | None = None
    baselines: Mapping[str, Any] | None = None

    @property
    def is_degenerate(self) -> bool | None:
        """Whether any trivial answer passes; ``None`` where none was tried."""
        known = [v for v in (self.degenerate or {}).values() if v is not None]
        return any(known) if known else None

    def baseline_us(self, name: str) -> float | None:
        """A baseline's time, microseconds; ``None`` where it was not measured or is no time."""
        value = (self.baselines or {}).get(f"{name}_us")
        return float(value) if isinstance(value, int | float) and value > 0 else None


@dataclass(frozen=True)
class EvalAttempt:
    """One trajectory on one task.

    Attributes:
        id, sample: task, and which of its samples.
        best, last: verdict on the best version of the trajectory, and on the one it ended with.
        judge_calls, judged: judgements in all, and by scope (build, verify, profile, full).
        cost_usd: ``None`` where no price is known.
        infrastructure: why our own side failed, if it did.
        task_error: why the reference cannot be judged here, if it cannot.
        detail: a line on the ending.
        words: the policy's last words, cut.
    """

    id: str
    sample: int = 0
    ending: str = ""
    best: Result | None = None
    last: Result | None = None
    judge_calls: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost_usd: float | None = None
    infrastructure: str | None = None
    judged: Mapping[str, int] = field(default_factory=dict)
    task_error: str | None = None
    detail: str = ""
    words: str = ""

    def result(self, pick: Pick) -> Result | None:
        """The verdict that counts."""
        return self.best if pick is Pick.BEST else self.last

    def verdict(self, pick: Pick = Pick.BEST) -> Verdict:
        """How the attempt ended, by the version that counts."""
        result = self.result(pick)
        if self.task_error is not None:
            return Verdict.TASK_ERROR
        if self.infrastructure is not None or (result is None and self.ending in _BROKEN):
            return Verdict.INFRASTRUCTURE
        if result is None or (result.candidate_hash is None and result.correct is False):
            return Verdict.NO_CANDIDATE
        if result.infrastructure is not None or result.correct is None:
            return Verdict.INFRASTRUCTURE
        if result.correct:
            return Verdict.CORRECT
        return Verdict.CHEAT if result.violations else Verdict.WRONG

    def uncounted_reason(self, pick: Pick = Pick.BEST) -> str:
        """Why the attempt does not count, one line; empty where it does."""
        if self.verdict(pick) not in UNCOUNTED:
            return ""
        result = self.result(pick)
        lost = self.infrastructure or (result and result.infrastructure)
        return self.task_error or lost or f"no verdict; ended: {self.ending or 'unknown'}"


# Endings that say nothing of the policy's work where there is no verdict; none is one of them.
_BROKEN = ("", Ending.POLICY_ERROR, Ending.SANDBOX_ERROR, Ending.INTERRUPTED)


@dataclass(frozen=True)
class EvalRun:
    """A whole evaluation.

    Attributes:
        name: how tables call it.
        settings: eval.json.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[EvalTask, ...] = ()
    attempts: tuple[EvalAttempt, ...] = ()


def task_of(data: Mapping[str, Any]) -> EvalTask:
    """A line of tasks.jsonl; keys this version does not know are passed over.

    Raises:
        UsageError: it is not one.
    """
    values = _known(EvalTask, data)
    ops = values.get("ops") or ()
    values["ops"] = tuple(ops.split(",")) if isinstance(ops, str) else tuple(str(op) for op in ops)
    values["name"] = str(values.get("name") or values.get("id"))
    return _made(EvalTask, values, "tasks.jsonl")


def attempt_of(data: Mapping[str, Any]) -> EvalAttempt:
    """A line of attempts.jsonl; keys this version does not know are passed over.

    Raises:
        UsageError: it is not one.
    """
    values = _known(EvalAttempt, data)
    try:
        for pick in Pick:
            values[pick] = Result.from_dict(values[pick]) if values.get(pick) else None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"attempts.jsonl: {data.get('id')}: no result: {error}") from None
    return _made(EvalAttempt, values, "attempts.jsonl")


def latest_attempts(attempts: Sequence[EvalAttempt]) -> tuple[EvalAttempt, ...]:
    """One record for each task and sample: the last written (a repeated attempt replaces the earlier)."""
    return tuple({(a.id, a.sample): a for a in attempts}.values())


def _known(kind: type[EvalTask] | type[EvalAttempt], data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k in kind.__dataclass_fields__ and v is not None}


def _made(kind: type[_T], values: Mapping[str, Any], where: str) -> _T:
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{where}: a line does not fit: {error}", "Run the evaluation again.") from None
