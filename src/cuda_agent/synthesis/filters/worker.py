"""The filters' worker: task code only. Loads one task after another and measures what it is asked to.

Started as ``python worker.py FD``. A task that crashes or hangs it costs that task; the pool starts another.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch

from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.worker import Refused, Worker, connect, settle
from cuda_agent.synthesis.filters.loaded import Loaded
from cuda_agent.synthesis.filters.small_run import behaviour, real_trace, sensitivity

Measure = Callable[..., Mapping[str, Any]]


class FilterWorker(Worker):
    """Holds one task at a time."""

    def __init__(self) -> None:
        super().__init__(connect())
        self.task: Loaded | None = None
        self.num_threads = 1
        self.handlers |= {"settle": self._settle, "open": self._open, "measure": self._measure}

    def _settle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.device = message["device"]
        self.num_threads = message["num_threads"]
        settle(self.device, self.num_threads)
        return {}

    def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Load a source; the task before it is forgotten."""
        self.task = None
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()
        self.task = Loaded(Path(message["path"]), self.device)
        return {}

    def _measure(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self.task is None:
            raise Refused(FailureKind.TASK, "no task is loaded")
        return {"facts": dict(MEASURES[message["name"]](self, self.task, **message["options"]))}


def _abstract(_: FilterWorker, task: Loaded) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.abstract_run import abstract

    return abstract(task)


def _traced(_: FilterWorker, task: Loaded) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.abstract_run import trace_facts

    return trace_facts(real_trace(task))


def _mutants(_: FilterWorker, task: Loaded) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.mutants import run_mutants

    return run_mutants(task.model(), task.moved_model(), [task.draw(1), task.draw(2)])


def _admission(worker: FilterWorker, task: Loaded, *, limit_s: float) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.local_reference import admit_here

    return admit_here(task, num_threads=worker.num_threads, limit_s=limit_s)


def _eager(_: FilterWorker, task: Loaded, *, num_samples: int, limit_us: float) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.device_run import eager_time

    return eager_time(task, num_samples=num_samples, limit_us=limit_us)


def _compiled(_: FilterWorker, task: Loaded, *, backend: str) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.device_run import compiled

    return compiled(task, backend=backend)


def _compile_time(_: FilterWorker, task: Loaded, *, num_samples: int) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.device_run import compile_time

    return compile_time(task, num_samples=num_samples)


def _vendor(_: FilterWorker, task: Loaded) -> Mapping[str, Any]:
    from cuda_agent.synthesis.filters.device_run import vendor_share

    return {"share": vendor_share(task)}


MEASURES: dict[str, Measure] = {
    "abstract": _abstract,
    "behaviour": lambda _, task: behaviour(task),
    "traced": _traced,
    "sensitivity": lambda _, task: sensitivity(task),
    "mutants": _mutants,
    "admission": _admission,
    "eager": _eager,
    "compiled": _compiled,
    "compile_time": _compile_time,
    "vendor": _vendor,
}


if __name__ == "__main__":
    FilterWorker().serve()
