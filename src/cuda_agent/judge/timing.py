"""Timing loops that run inside the worker processes, the same for the reference and the candidate.

CPU: wall time of one call. CUDA: the device span of one call between two events, launched behind a spin
kernel so that the host is not what is measured, after a device-wide synchronisation and an L2 flush.
A candidate's own samples are evidence only: the judge's clock bounds them (cuda_agent.judge.profile).
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

_MIN_SPIN_US = 50.0
_MAX_SPIN_US = 50_000.0


class Timer(Protocol):
    """Times single calls on one kind of device."""

    def calibrate(self, call: Callable[[], Any]) -> None:
        """Learn what the timer needs to know of a call (runs it)."""
        ...

    def sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Time one call: microseconds, and what it returned."""
        ...

    def burst(self, call: Callable[[int], Any], num_calls: int) -> Any:
        """Run calls back to back, wait for the device, return the last output."""
        ...


class CpuTimer:
    """Wall clock around one call."""

    def calibrate(self, call: Callable[[], Any]) -> None:
        call()

    def sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter_ns()
        output = call()
        return (time.perf_counter_ns() - start) / 1e3, output

    def burst(self, call: Callable[[int], Any], num_calls: int) -> Any:
        output = None
        for index in range(num_calls):
            output = call(index)
        return output


class CudaTimer:
    """Device span of one call, L2 flushed, behind a spin kernel."""

    def __init__(self, device: str) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._flush = torch.empty(max(1, 2 * properties.L2_cache_size), dtype=torch.int8, device=device)
        # clock_rate is in kHz: cycles per millisecond.
        self._cycles_per_us = getattr(properties, "clock_rate", 2_000_000) / 1e3
        self._spin_us = _MIN_SPIN_US
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def calibrate(self, call: Callable[[], Any]) -> None:
        call()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        host_us = (time.perf_counter_ns() - start) / 1e3
        torch.cuda.synchronize()
        self._spin_us = min(_MAX_SPIN_US, max(_MIN_SPIN_US, 1.5 * host_us + 20.0))

    def sample(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self._flush.add_(1)
        torch.cuda.synchronize()
        torch.cuda._sleep(int(self._spin_us * self._cycles_per_us))
        self._start.record()
        output = call()
        self._end.record()
        torch.cuda.synchronize()
        return self._start.elapsed_time(self._end) * 1e3, output

    def burst(self, call: Callable[[int], Any], num_calls: int) -> Any:
        output = None
        for index in range(num_calls):
            output = call(index)
        torch.cuda.synchronize()
        return output


def make_timer(device: str) -> Timer:
    """The timer of a device (``cpu`` or ``cuda:N``)."""
    return CpuTimer() if device == "cpu" else CudaTimer(device)


def time_calls(
    timer: Timer, call: Callable[[int], Any], *, order: Sequence[int], warmup: int, keep_last: int
) -> tuple[list[float], list[tuple[int, Any]]]:
    """Time calls on input sets in the given order.

    Args:
        timer: of the device.
        call: runs the module on input set ``i``.
        order: input set of each timed call.
        warmup: untimed calls before, on the same sets.
        keep_last: how many of the last outputs to hold.

    Returns:
        Microseconds of each call, and the held (input set, output) pairs.
    """
    for index in range(warmup):
        call(order[index % len(order)])
    timer.calibrate(lambda: call(order[0]))
    samples: list[float] = []
    held: list[tuple[int, Any]] = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for index in order:
            elapsed, output = timer.sample(lambda index=index: call(index))  # type: ignore[misc]
            samples.append(elapsed)
            held.append((index, output))
            del output
            if len(held) > keep_last:
                held.pop(0)
    finally:
        if collecting:
            gc.enable()
    return samples, held


def run_burst(
    timer: Timer, call: Callable[[int], Any], *, num_sets: int, num_calls: int, keep_last: int
) -> list[tuple[int, Any]]:
    """Run calls back to back on input sets in turn and wait for the device.

    Returns:
        The held (input set, output) pairs, of the last ``keep_last`` calls.
    """
    held: deque[tuple[int, Any]] = deque(maxlen=keep_last)

    def step(index: int) -> None:
        held.append((index % num_sets, call(index % num_sets)))

    timer.burst(step, num_calls)
    return list(held)


def time_released(
    timer: Timer, call: Callable[[], Any], *, warm_up: Callable[[], Any], flags: torch.Tensor
) -> tuple[float, Any]:
    """Time one call on values that are written while warm-up calls run.

    The new values' memory is touched once before they are written: a first touch of memory is slower, and
    the calls that this one is compared with make none.

    Args:
        timer: of the device.
        call: runs the module on the memory of the new values.
        warm_up: runs it on older ones, so that threads and clocks are as they are in the middle of work.
        flags: two bytes of shared memory: the other side sets the first when the new values are there,
            and writes them only after the second is set here.

    Returns:
        Microseconds, and what the call returned.
    """
    call()
    timer.calibrate(warm_up)
    gc.collect()
    flags[1] = 1
    while not flags[0]:
        warm_up()
    # A device that was kept busy makes the host wait long, and after that the host is slow at first.
    timer.sample(warm_up)
    return timer.sample(call)


def kernel_times(call: Callable[[], Any], num_calls: int) -> tuple[list[float], dict[str, float]]:
    """Sum of kernel times for each call, microseconds, and the share by kernel name, from CUPTI.

    CUDA only; evidence, never a credit.
    """
    # Not torch.profiler.profile: it imports the compiler stack, seconds in a fresh process.
    from torch.autograd.profiler import profile

    sums: list[float] = []
    by_name: dict[str, float] = {}
    for _ in range(num_calls):
        torch.cuda.synchronize()
        with profile(use_cpu=False, use_device="cuda", use_kineto=True, acc_events=True) as trace:
            call()
            torch.cuda.synchronize()
        total = 0.0
        for event in trace.function_events:
            if event.device_type == torch.autograd.DeviceType.CUDA:
                total += event.device_time
                by_name[event.name] = by_name.get(event.name, 0.0) + event.device_time
        sums.append(total)
    return sums, by_name
