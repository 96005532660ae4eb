"""A measurement that others disturbed is taken again; disturbed twice, it is no verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.bystanders import Seen, Watch
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.processes import WorkerDied, WorkerError
from cuda_agent.result import Fault

_REMEDY = "Judge again when the GPU is this judge's alone, or on another one (--gpu)."
T = TypeVar("T")


def undisturbed(measure: Callable[[], T], watch: Watch, *, strict: bool, note: Callable[[str], None]) -> T:
    """Take a measurement, and once more where the device was not ours alone or its clocks were held down.

    Args:
        measure: takes it; may run twice.
        watch: over the device.
        strict: no result where the second is disturbed too; else that one, with a note.
        note: receives remarks for the verdict.

    Raises:
        InfrastructureError: disturbed twice; or beside a busy process of others the candidate ran out of
            time or memory, which then says nothing of it.
        WorkerError, WorkerDied: the candidate failed.
    """
    first, seen = _watched(measure, watch, note)
    if not seen.disturbed:
        return first
    again, still = _watched(measure, watch, note)
    if not still.disturbed:
        note(f"timed a second time, since the first was disturbed ({seen})")
    elif strict:
        raise InfrastructureError(f"disturbed in two measurements: {still}", _REMEDY)
    else:
        note(f"these times were disturbed ({still})")
    return again


def _watched(measure: Callable[[], T], watch: Watch, note: Callable[[str], None]) -> tuple[T, Seen]:
    seen = Seen()
    try:
        with watch.window(seen):
            result = measure()
    except (WorkerDied, WorkerError) as fault:
        if seen.others and _others_can_cause(fault):
            raise InfrastructureError(f"{fault}, beside others: {seen}", _REMEDY) from None
        raise
    for remark in sorted(seen.remarks):
        note(remark)
    return result, seen


def _others_can_cause(fault: WorkerDied | WorkerError) -> bool:
    if isinstance(fault, WorkerError):
        return fault.kind is FailureKind.OUT_OF_MEMORY
    return fault.fault in (Fault.TIME_OUT, Fault.OUT_OF_MEMORY)
