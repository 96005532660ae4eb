"""A process and all that descends from it, as /proc shows them: who they are, what they took."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which may hold anything: the state is the first.
_PARENT, _UTIME, _STIME = 1, 11, 12


def processor_seconds(pid: int) -> float:
    """Seconds of user and system time that the tree under ``pid`` has taken, its ended threads too.

    Counted in ticks of 10 ms. Children that ended and were reaped are left out.
    """
    stats = (_stat(member) for member in members(pid))
    return sum(int(stat[_UTIME]) + int(stat[_STIME]) for stat in stats if stat) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of the tree under ``pid``, bytes; shared pages count once for each process."""
    pages = 0
    for member in members(pid):
        with suppress(OSError, ValueError, IndexError):
            pages += int((_PROC / str(member) / "statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def members(pid: int) -> list[int]:
    """``pid`` and the processes that descend from it, as far as they are alive."""
    listed = (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()
    children = _children if listed else _children_by_parent().__getitem__  # not every kernel lists them
    found, waiting = [], [pid]
    while waiting:
        member = waiting.pop()
        found.append(member)
        waiting += children(member)
    return found


def ancestors(pid: int) -> list[int]:
    """Processes that ``pid`` descends from, its parent first, as far as this namespace sees them."""
    found: list[int] = []
    while (stat := _stat(pid)) and (parent := int(stat[_PARENT])) > 0 and parent not in found:
        found.append(parent)
        pid = parent
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    return found


def _children_by_parent() -> defaultdict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (stat := _stat(int(folder.name))):
            found[int(stat[_PARENT])].append(int(folder.name))
    return found


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()
    return []
