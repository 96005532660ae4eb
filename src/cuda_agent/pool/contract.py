"""What a caller of a pool sees, wherever the pool is: requests in, jobs with one ending each out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import PoolError, UsageError
from cuda_agent.result import Result, Stage
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot


class JobState(StrEnum):
    """Where a job is. The last four are endings; a job has exactly one, and it never changes.

    ``DONE``: a verdict. ``REFUSED``: the request cannot be judged (task, options, toolchain).
    ``LOST``: our own side failed; no verdict, never trained on. ``CANCELLED``: its caller wanted it no more.
    """

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the state is an ending."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class QueueFullError(PoolError):
    """The queue, or the caller's share of it, is full: try again later."""


class NoSuchJobError(PoolError):
    """The pool knows no such job: never submitted, forgotten by age, or the pool was restarted."""


@dataclass(frozen=True)
class JudgeRequest:
    """One candidate to judge.

    Attributes:
        task: the reference.
        snapshot: the candidate.
        config: contract; ``gpu`` is the pool's to choose.
        scope: how much to do.
        task_given: the reference came from a task file, not from the candidate's own folder.
    """

    task: Task
    snapshot: Snapshot
    config: JudgeConfig = field(default_factory=JudgeConfig)
    scope: Scope = Scope.FULL
    task_given: bool = True


@dataclass(frozen=True)
class Job:
    """A job at one moment.

    Attributes:
        id: random, 32 hex digits.
        caller: who submitted it; callers take turns.
        state: where it is.
        position: jobs before it in its caller's line, while queued.
        device: where it runs or ran.
        lines: progress, the latest :data:`MAX_LINES`.
        num_lines: progress lines in all.
        result: the verdict; with ``infrastructure`` set when ``LOST``.
        error: ``{"kind", "cause", "remedy"}`` when ``REFUSED``.
        waited_s, ran_s: seconds in the queue and on a device.
    """

    id: str
    caller: str
    state: JobState
    position: int | None = None
    device: str | None = None
    lines: tuple[str, ...] = ()
    num_lines: int = 0
    result: Result | None = None
    error: Mapping[str, str] | None = None
    waited_s: float = 0.0
    ran_s: float = 0.0

    def lines_after(self, number: int) -> tuple[str, ...]:
        """The progress lines after the first ``number`` ones, as far as they are kept."""
        fresh = self.num_lines - number
        return self.lines[-fresh:] if fresh > 0 else ()


MAX_LINES = 200


@dataclass(frozen=True)
class DeviceMetrics:
    """One device of a pool.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        workers: judges on it.
        running: jobs on it now.
        utilisation: share of the last minute in which a finished job held it, 0 to 1.
        warm_sessions: tasks kept warm.
        out_of_use: why no job goes there any more; empty while it works.
    """

    device: str
    workers: int
    running: int
    utilisation: float
    warm_sessions: int
    out_of_use: str


@dataclass(frozen=True)
class PoolMetrics:
    """A pool at one moment.

    Attributes:
        queued, running: jobs now.
        queue_limit: jobs that may wait.
        callers_waiting: callers with a queued job.
        verdicts_per_minute: verdicts of the last minute.
        ended: jobs since the start, by ending.
        kept: ended jobs whose results can still be fetched.
        warm_hits: jobs that found their task's judge warm.
        uptime_s: seconds since the start.
        devices: one for each.
    """

    queued: int
    running: int
    queue_limit: int
    callers_waiting: int
    verdicts_per_minute: int
    ended: Mapping[str, int]
    kept: int
    warm_hits: int
    uptime_s: float
    devices: tuple[DeviceMetrics, ...]


class Pool(Protocol):
    """Judges many candidates for many callers. Thread-safe."""

    def submit(self, request: JudgeRequest, *, caller: str, job_id: str = "") -> str:
        """Queue a candidate; its job's id.

        ``job_id`` (32 hex digits of the caller's own) makes it safe to submit again when the answer was
        lost: a job of that id is there once.

        Raises:
            QueueFullError: no room.
            UsageError: the pool has no such device, or a limit is out of range.
            PoolError: the pool does not answer, refuses, or is closed.
        """

    def job(self, job_id: str, *, wait_s: float = 0.0, seen: int = 0) -> Job:
        """A job; waits until it has ended, or has more than ``seen`` progress lines, up to ``wait_s``.

        Raises:
            NoSuchJobError: no such job (any more).
            PoolError: the pool does not answer or refuses.
        """

    def cancel(self, job_id: str) -> Job:
        """End a job that has not ended; one that has stays as it is.

        Raises:
            NoSuchJobError, PoolError: see :meth:`job`.
        """

    def metrics(self) -> PoolMetrics:
        """Counts, rates and devices.

        Raises:
            PoolError: the pool does not answer or refuses.
        """

    def close(self) -> None:
        """Let go of everything; may run twice."""


def session_key(request: JudgeRequest) -> str:
    """What a warm judge is for: task, contract and origin of the reference, whatever the GPU."""
    config = replace(request.config, gpu=0)
    return f"{request.task.hash} {request.task.search_path} {config} {request.task_given}"


_LIMITS = {
    "num_draws": (1, 50),
    "timing_budget_s": (0.05, 120.0),
    "build_limit_s": (1.0, 900.0),
    "run_limit_s": (1.0, 900.0),
}


def check_limits(config: JudgeConfig) -> None:
    """A shared pool serves nobody for hours.

    Raises:
        UsageError: a limit of the request is outside what a pool grants.
    """
    for name, (low, high) in _LIMITS.items():
        if not low <= getattr(config, name) <= high:
            raise UsageError(f"{name} must be between {low:g} and {high:g} in a pool")


def kind_of(device: str) -> Device:
    """``cpu`` or ``cuda`` of a device's name."""
    return Device(device.partition(":")[0])


def lost(reason: str, request: JudgeRequest) -> Result:
    """The result of a job that our own side lost."""
    return Result(
        stage=Stage.BUILD,
        infrastructure=reason,
        track=str(request.config.track),
        precision=str(request.config.precision),
        reference="task" if request.task_given else "unverified",
        task_hash=request.task.hash,
        candidate_hash=request.snapshot.hash,
    )


def plain(value: Any) -> dict[str, Any]:
    """A job or metrics as plain JSON types."""
    data: dict[str, Any] = asdict(value)
    if isinstance(value, Job):
        # By way of the strict text: non-finite numbers become null.
        data["result"] = json.loads(value.result.to_json()) if value.result else None
    return data
