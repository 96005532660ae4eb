"""Many attempts, each in a process of its own, some at once; timed parts wait for the device's lease.

Nothing made is lost: an attempt's line is appended when it is finished, unfinished ones are gone on with by
``--resume``, and those that our own side lost are made again then.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.errors import UsageError
from cuda_agent.evals.attempt import attempt_file, log_file
from cuda_agent.evals.attempt_process import EXIT_INTERRUPTED
from cuda_agent.evals.metrics_records import EvalAttempt, EvalTask, attempt_of
from cuda_agent.evals.run_files import EvalFolder, EvalSettings
from cuda_agent.runs.run_folder import writing
from cuda_agent.tasks.taskset import Taskset
from cuda_agent.workspace.layout import source_root

Say = Callable[[str], None]
OnAttempt = Callable[[EvalAttempt], None]

_POLL_S = 0.1
_STOP_S = 20.0
_SIGNAL_EVERY_S = 1.0
_INTERRUPTED = (EXIT_INTERRUPTED, -signal.SIGINT)


def create_evaluation(root: Path, taskset: Taskset, settings: EvalSettings) -> EvalFolder:
    """Lay out the folder of an evaluation: settings, tasks, references.

    Raises:
        UsageError: the folder holds something.
        InfrastructureError: it cannot be written.
    """
    folder = EvalFolder.create(root, settings)
    for entry in taskset.entries:
        folder.save_task(entry.id, entry.task)
        # The line comes last: a task that has one has its reference.
        folder.add_task(
            EvalTask(
                id=entry.id,
                name=entry.task.name,
                level=entry.level,
                problem_id=entry.problem_id,
                task_hash=entry.task.hash,
                ops=entry.task.ops,
            )
        )
    return folder


@contextmanager
def sole_user(folder: EvalFolder) -> Iterator[None]:
    """Hold the folder's lock, which the kernel frees when its holder dies.

    Raises:
        UsageError: another process works there.
    """
    path = folder.root / ".lock"
    with writing(path):
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process works on {folder.root}", "Wait for it, or name another --out."
            ) from None
        yield


@dataclass(frozen=True)
class _Job:
    key: str
    sample: int
    alone: bool = False


class Evaluation:
    """Makes the attempts that are missing in a folder. One thread: a child dies with the thread that made it.

    Args:
        folder: of the evaluation.
        jobs: attempts at once.
        on_attempt: told of each line when it is on disk.
        say: receives remarks.
    """

    def __init__(self, folder: EvalFolder, *, jobs: int, on_attempt: OnAttempt, say: Say) -> None:
        self._folder, self._jobs, self._on_attempt, self._say = folder, jobs, on_attempt, say
        self._running: dict[_Job, subprocess.Popen[bytes]] = {}
        self._waiting: deque[_Job] = deque()

    def run(self) -> None:
        """Make all; Ctrl-C stops the attempts at work, which keep what they have.

        Raises:
            KeyboardInterrupt: after they have stopped.
            InfrastructureError: the folder cannot be written.
        """
        self._waiting = deque(self._missing())
        try:
            while self._waiting or self._running:
                while self._may_start():
                    self._start(self._waiting.popleft())
                time.sleep(_POLL_S)
                self._collect()
        except KeyboardInterrupt:
            self._say(f"interrupted: stopping {len(self._running)} attempts (--resume goes on with them)")
            self._stop()
            raise
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()

    def _missing(self) -> Iterator[_Job]:
        """First attempts at every task first: rates mean something early."""
        done = {(a.id, a.sample) for a in self._folder.attempts() if a.infrastructure is None}
        tasks = self._folder.tasks()
        for sample in range(self._folder.settings().samples):
            for task in tasks:
                job = _Job(task.id, sample)
                if (task.id, sample) in done:
                    continue
                # A killed evaluation may have left a line that it did not take in.
                if (line := self._left(job)) is None or line.infrastructure is not None:
                    yield job
                else:
                    self._append(line)

    def _may_start(self) -> bool:
        if not self._waiting or len(self._running) >= self._jobs:
            return False
        alone = self._waiting[0].alone or any(job.alone for job in self._running)
        return not (alone and self._running)

    def _start(self, job: _Job) -> None:
        log = log_file(self._folder, job.key, job.sample)
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            attempt_file(self._folder, job.key, job.sample).unlink(missing_ok=True)
            file = log.open("ab")
        argv = [sys.executable, "-m", "cuda_agent.evals.attempt_process"]
        with file:
            self._running[job] = subprocess.Popen(
                [*argv, str(self._folder.root), job.key, str(job.sample)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=_environment(),
                start_new_session=True,
            )

    def _collect(self, *, stopping: bool = False) -> None:
        """Take in the lines of attempts whose processes have ended."""
        for job, process in list(self._running.items()):
            if (status := process.poll()) is None:
                continue
            del self._running[job]
            line = self._left(job)
            if line is None and (stopping or status in _INTERRUPTED):
                continue
            if line is None:
                why = f"its process ended with {_status_words(status)}{self._last_words(job)}"
                line = EvalAttempt(job.key, job.sample, infrastructure=why)
            if line.task_error and self._jobs > 1 and not job.alone:
                # Beside others there may have been too little memory: tried again alone, at the end.
                self._waiting.append(replace(job, alone=True))
                continue
            self._append(line)

    def _left(self, job: _Job) -> EvalAttempt | None:
        """The line that an attempt's process left."""
        path = attempt_file(self._folder, job.key, job.sample)
        try:
            return attempt_of(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, UsageError):
            return None

    def _append(self, line: EvalAttempt) -> None:
        self._folder.add_attempt(line)
        attempt_file(self._folder, line.id, line.sample).unlink(missing_ok=True)
        self._on_attempt(line)

    def _last_words(self, job: _Job) -> str:
        path = log_file(self._folder, job.key, job.sample)
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return f": {lines[-1][:300]}"
        return ""

    def _stop(self) -> None:
        """Interrupt the attempts until they have stopped: the first signal ends the episode, the next all."""
        deadline = time.monotonic() + _STOP_S
        while self._running and time.monotonic() < deadline:
            for process in self._running.values():
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
            until = time.monotonic() + _SIGNAL_EVERY_S
            while self._running and time.monotonic() < until:
                time.sleep(_POLL_S)
                self._collect(stopping=True)


def _status_words(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"status {status}"


def _environment() -> dict[str, str]:
    """Ours, with this package on the path also where it is not installed."""
    paths = [str(source_root()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
