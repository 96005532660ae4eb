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
    """Kill every process so marked; again while new ones appear, since a killed parent may have forked."""
    for _ in range(20):
        pids = marked(value)
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
