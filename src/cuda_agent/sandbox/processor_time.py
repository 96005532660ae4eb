"""Processor time of a process and of all that descends from it, as the kernel counts it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which may hold anything: state is the first.
_UTIME, _STIME = 11, 12


def processor_seconds(pid: int) -> float:
    """Seconds of user and system time that the tree under ``pid`` has taken, its ended threads too.

    Counted in ticks of 10 ms. Children that ended and were reaped are left out.
    """
    return sum(_own_ticks(member) for member in _tree(pid)) / _TICKS_PER_S


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        member = todo.pop()
        found.append(member)
        with suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                with suppress(OSError):
                    todo.extend(int(child) for child in (task / "children").read_text().split())
    return found


def _own_ticks(pid: int) -> int:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        values = fields.split()
        return int(values[_UTIME]) + int(values[_STIME])
    return 0
