"""Processor time of others: counted when others take it, not when this process's own children do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from cuda_agent.judge.host_load import HostLoad, host_load
from cuda_agent.sandbox.process_tree import processor_seconds

BUSY = "while True: pass"


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Processes that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def share_of(pids: list[int], window: AbstractContextManager[HostLoad]) -> tuple[float, float]:
    """What the window says of others, and the share of all processors that ``pids`` took within it."""
    before, start = sum(map(processor_seconds, pids)), time.monotonic()
    with window as load:
        time.sleep(1.0)
    span = (time.monotonic() - start) * len(os.sched_getaffinity(0))
    return load.others, (sum(map(processor_seconds, pids)) - before) / span


def test_who_belongs_to_the_root_is_no_other() -> None:
    with busy(2 * len(os.sched_getaffinity(0))) as pids:
        others, ours = share_of(pids, host_load())
        assert ours > 0.05 and 0.0 <= others <= 1.0 - ours + 0.05
        others, rest = share_of(pids[1:], host_load(pids[0]))
        assert rest > 0.05 and others >= rest - 0.05
