"""How much of this machine's processors others took while something was measured.

A clock that is read while others hold the processors says little of who computes. Counted over the processors
that this process may use: all that ran there, less what this judge and its descendants took. A candidate's
process can start no other, so it cannot add to the share of others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.sandbox.process_tree import processor_seconds

_STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Columns of /proc/stat after the name: user nice system idle iowait irq softirq steal.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass
class HostLoad:
    """What others took of the processors.

    Attributes:
        others: share of all that these processors had to give, 0 to 1; 0 where the system does not tell.
    """

    others: float = 0.0


@contextmanager
def host_load(root: int | None = None) -> Iterator[HostLoad]:
    """Measure what others take while the block runs; filled in at its end.

    Args:
        root: process whose descendants are not others; this one if left out.
    """
    pid = os.getpid() if root is None else root
    load = HostLoad()
    all_before, own_before, start = _all_seconds(), processor_seconds(pid), time.monotonic()
    yield load
    span = (time.monotonic() - start) * len(os.sched_getaffinity(0))
    taken, own = _all_seconds() - all_before, processor_seconds(pid) - own_before
    load.others = min(1.0, max(0.0, taken - own) / span) if span > 0 else 0.0


def _all_seconds() -> float:
    """Seconds that anybody ran on the processors that this process may use."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    with suppress(OSError):
        for line in _STAT.read_text(encoding="ascii").splitlines():
            name, *columns = line.split()
            if name in names:
                ticks += sum(int(columns[index]) for index in _BUSY)
    return ticks / _TICKS_PER_S
