"""PyTorch operators on threads that the dispatcher guard does not see.

Runs inside the candidate's process: standard library and torch only, here and in what it imports.

Covers: operators that pass the dispatcher on any thread of the process between entry and exit (a
``std::thread`` that is joined, ``std::async``, an OpenMP region, ``at::parallel_for``), through PyTorch's
own observer of operators, set for all threads.

Does not cover: kernels called past the dispatcher (the symbol scan names them), threads that call later,
and code that switches observers off in C++. On CUDA it is not used: an observer started without the device
would keep the kernel list, measured later in the same process, from seeing kernels.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.autograd import (
    ProfilerConfig,
    ProfilerState,
    _disable_profiler,
    _enable_profiler,
    _prepare_profiler,
)

from cuda_agent.judge.guard import is_free, may_alias


class ThreadWatch:
    """Records operators that work on data and run on other threads than the one that entered.

    Attributes:
        violations: operator name (``aten::mm``) to number of calls; filled at exit.
    """

    def __init__(self) -> None:
        self.violations: dict[str, int] = {}

    def __enter__(self) -> ThreadWatch:
        options = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        config = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False, options, "")
        activities = {torch._C._profiler.ProfilerActivity.CPU}
        _prepare_profiler(config, activities)
        _enable_profiler(config, activities)
        torch.empty(0)  # the first event says which thread is this one
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        events = sorted(_disable_profiler().events(), key=lambda event: event.start_ns())
        own = events[0].start_thread_id() if events else None
        inside: dict[int, int] = {}  # by thread: end of the last allocation, which may fill what it gives
        for event in events:
            thread, name = event.start_thread_id(), event.name()
            if thread == own or event.start_ns() < inside.get(thread, 0):
                continue
            schemas = _schemas(name)
            if any(is_free(schema) for schema in schemas):
                inside[thread] = event.start_ns() + event.duration_ns()
            elif schemas and not any(may_alias(schema) for schema in schemas):
                self.violations[name] = self.violations.get(name, 0) + 1


def _schemas(name: str) -> list[Any]:
    """Every overload of an operator's name, which is all that is recorded; none for a mere label."""
    return list(torch._C._jit_get_schemas_for_operator(name)) if "::" in name else []
