"""What a pool remembers: jobs until their results are too old or too many, and what a minute held."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from cuda_agent.errors import CudaAgentError
from cuda_agent.pool.contract import MAX_LINES, Job, JobState, JudgeRequest, NoSuchJobError
from cuda_agent.pool.wire import error_to_dict
from cuda_agent.result import Result

_MAX_LINE_CHARS = 2000
_MINUTE_S = 60.0


@dataclass(eq=False)
class Record:
    """A job in the making; changed only under its pool's lock."""

    id: str
    caller: str
    request: JudgeRequest | None
    key: str
    state: JobState = JobState.QUEUED
    cancel: threading.Event = field(default_factory=threading.Event)
    device: str | None = None
    tries: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    num_lines: int = 0
    result: Result | None = None
    error: CudaAgentError | None = None
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    ended: float | None = None

    def say(self, line: str) -> None:
        """Keep a progress line."""
        self.lines.append(line[:_MAX_LINE_CHARS])
        self.num_lines += 1

    def job(self, position: int | None = None) -> Job:
        """The job at this moment."""
        now = self.ended or time.monotonic()
        started = self.started or now
        return Job(
            id=self.id,
            caller=self.caller,
            state=self.state,
            position=position,
            device=self.device,
            lines=tuple(self.lines),
            num_lines=self.num_lines,
            result=self.result,
            error=error_to_dict(self.error) if self.error else None,
            waited_s=started - self.submitted,
            ran_s=now - started,
        )


class Ledger:
    """Jobs by id. Not thread-safe: its owner locks.

    Args:
        keep: ended jobs kept.
        keep_s: how long an ended job is kept, seconds.
    """

    def __init__(self, *, keep: int, keep_s: float) -> None:
        self._keep, self._keep_s = keep, keep_s
        self._open: dict[str, Record] = {}
        self._ended: OrderedDict[str, Record] = OrderedDict()
        self._recent: deque[tuple[float, str, float, JobState]] = deque()
        self.counts: Counter[JobState] = Counter()
        self.warm_hits = 0

    @property
    def num_kept(self) -> int:
        """Ended jobs that can still be fetched."""
        self._forget()
        return len(self._ended)

    def add(self, record: Record) -> None:
        """A new job."""
        self._open[record.id] = record

    def has(self, job_id: str) -> bool:
        """Whether there is such a job."""
        return job_id in self._open or job_id in self._ended

    def get(self, job_id: str) -> Record:
        """A job by its id.

        Raises:
            NoSuchJobError: never there, or forgotten.
        """
        self._forget()
        record = self._open.get(job_id) or self._ended.get(job_id)
        if record is None:
            raise NoSuchJobError(f"the pool knows no job {job_id[:40]}", "Submit it again.")
        return record

    def end(
        self,
        record: Record,
        state: JobState,
        *,
        result: Result | None = None,
        error: CudaAgentError | None = None,
    ) -> None:
        """The one ending of a job; its request's bytes are let go."""
        record.state, record.result, record.error = state, result, error
        record.ended = time.monotonic()
        record.request = None
        self.counts[state] += 1
        held_s = _held_s(result)
        if record.device is not None:
            self._recent.append((record.ended, record.device, held_s, state))
        self._ended[record.id] = self._open.pop(record.id)
        self._forget()

    def verdicts_of_last_minute(self) -> int:
        """Jobs that ended with a verdict."""
        self._forget()
        return sum(state is JobState.DONE for _, _, _, state in self._recent)

    def utilisation(self, device: str) -> float:
        """Share of the last minute that ended jobs held the device, 0 to 1."""
        self._forget()
        return min(1.0, sum(held for _, name, held, _ in self._recent if name == device) / _MINUTE_S)

    def _forget(self) -> None:
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > _MINUTE_S:
            self._recent.popleft()
        while self._ended:
            oldest = next(iter(self._ended.values()))
            fresh = oldest.ended is not None and now - oldest.ended <= self._keep_s
            if fresh and len(self._ended) <= self._keep:
                return
            self._ended.popitem(last=False)


def _held_s(result: Result | None) -> float:
    """Seconds under the device's lease: all phases but the build, which needs no device."""
    seconds = result.seconds if result is not None else {}
    return sum(seconds.get(phase, 0.0) for phase in ("load", "verify", "profile"))
