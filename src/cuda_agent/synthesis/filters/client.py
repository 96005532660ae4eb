"""One disposable worker as the filters see it: open a task, measure it; a loss costs that task only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.processes import WorkerDied, WorkerError, WorkerProcess
from cuda_agent.sandbox.view import View

_WORKER = Path(__file__).with_name("worker.py")
_TASKS_PER_WORKER = 100
_START_LIMIT_S = 180.0


class TaskFailed(Exception):
    """A task could not be measured, for a reason of its own: one line."""


class Client:
    """A worker on one device, started when needed and replaced when lost or worn out.

    Args:
        device: ``cpu`` or ``cuda:N``.
        num_threads: of the worker's operators.
        cache: folder of torch.compile's cache, shared by workers.
        memory_bytes: it may use.
    """

    def __init__(
        self, device: str, *, num_threads: int, cache: Path, memory_bytes: int | None = None
    ) -> None:
        self._device = device
        self._num_threads = num_threads
        self._cache = cache
        self._memory_bytes = memory_bytes
        self._worker: WorkerProcess | None = None
        self._num_tasks = 0
        self._sick = False
        self.num_lost = 0

    def open(self, code: str, *, limit_s: float) -> None:
        """Load a source.

        Raises:
            TaskFailed: it does not import, or took its worker down.
            InfrastructureError: no worker can be started.
        """
        worker = self._ready()
        path = worker.scratch / f"task{self._num_tasks}.py"
        path.write_text(code, encoding="utf-8")
        self._num_tasks += 1
        self._ask("open", limit_s, path=str(path))

    def measure(
        self, name: str, *, limit_s: float, options: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """One measurement of the loaded task, as facts.

        Raises:
            TaskFailed: the task cannot be measured, or took its worker down.
        """
        facts: Mapping[str, Any] = self._ask("measure", limit_s, name=name, options=dict(options or {}))[
            "facts"
        ]
        return facts

    def _ask(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        if self._worker is None:
            raise TaskFailed("its worker was lost")
        try:
            return self._worker.ask(op, limit_s=limit_s, **fields)[0]
        except WorkerError as error:
            # A device that saw an illegal access is of no use to the tasks after it.
            self._sick = error.kind in (FailureKind.ILLEGAL_ACCESS, FailureKind.CUDA_ERROR)
            raise TaskFailed(" ".join(str(error).split())[:300]) from None
        except WorkerDied as death:
            self.num_lost += 1
            self.close()
            raise TaskFailed(f"it took its process down: {' '.join(str(death).split())[:200]}") from None

    def _ready(self) -> WorkerProcess:
        if self._sick or self._num_tasks >= _TASKS_PER_WORKER:
            self.close()
        if self._worker is None or not self._worker.is_alive():
            self._worker = self._started()
            self._num_tasks, self._sick = 0, False
        return self._worker

    def _started(self) -> WorkerProcess:
        gpu = self._device != "cpu"
        threads = str(self._num_threads)
        worker = WorkerProcess(
            _WORKER,
            env={
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                "HF_HUB_OFFLINE": "1",
                "PYTHONHASHSEED": "0",
                "TORCHINDUCTOR_CACHE_DIR": str(self._cache),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
            },
            label="filter",
            view=View(write=(self._cache,), gpu=gpu, user="cuda-agent synth"),
            memory_bytes=self._memory_bytes,
        )
        try:
            worker.ask("settle", limit_s=_START_LIMIT_S, device=self._device, num_threads=self._num_threads)
        except (WorkerError, WorkerDied) as error:
            worker.close()
            raise InfrastructureError(f"the filters' worker does not start: {error}") from None
        return worker

    def close(self) -> None:
        """End the worker; may run twice."""
        if self._worker is not None:
            with suppress(OSError):
                self._worker.close()
            self._worker = None


def memory_share(num_workers: int) -> int:
    """Memory of this machine for one of several workers, bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(0.8 * total / num_workers)
