"""Find and kill what an agent's command left running, daemons in sessions of their own included.

Every shell is started with a mark in its environment, which its children inherit. Covers: any child,
whatever its group, session or parent. Does not cover: a process that clears its environment, and systems
without /proc (there only the process group is killed).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "CUDA_AGENT_SHELL_MARK"
_DEATH_LIMIT_S = 5.0


def marked(value: str) -> list[int]:
    """Ids of living processes started with ``MARK=value`` in their environment."""
    needle = f"{MARK}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if needle in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_marked(value: str) -> None:
    """Kill every process so marked; again while new ones appear, since a killed parent may have forked.

    Returns when all are dead, at the latest after ``_DEATH_LIMIT_S``: a killed process that is still on its
    way out has no environment any more, but may yet hold files and cores.
    """
    killed: set[int] = set()
    for _ in range(20):
        pids = marked(value)
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.01)
    deadline = time.monotonic() + _DEATH_LIMIT_S
    while any(map(is_alive, killed)) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs or is still on its way out (a zombie is dead: its parent reaps it)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
