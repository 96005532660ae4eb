"""Which isolation this machine allows, found by trying it once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

_TRIAL_LIMIT_S = 20.0


class Isolation(StrEnum):
    """How far a process can be kept apart here, best first."""

    ROOT = "root"
    """Namespaces of its own and a user of its own: we are root."""
    USER = "user"
    """Namespaces of its own by a user namespace; same user as we are."""
    NONE = "none"
    """The host forbids namespaces: limits, group kill, clean environment."""


@functools.cache
def isolation() -> Isolation:
    """The best that works here."""
    if os.geteuid() == 0 and _works(Isolation.ROOT):
        return Isolation.ROOT
    return isolation_as_ourselves()


@functools.cache
def isolation_as_ourselves() -> Isolation:
    """The best that works here for a process that stays our user."""
    return Isolation.USER if _works(Isolation.USER) else Isolation.NONE


def _works(mode: Isolation) -> bool:
    spec: dict[str, object] = {
        "mode": str(mode),
        "memory_bytes": None,
        "limit_address_space": False,
        "tmp_bytes": 1 << 20,
        "file_bytes": None,
        "processes": None,
        "cpu_s": None,
        "network": False,
        "die_with_parent": True,
        "write": [],
        "owned": [],
        "read": [],
        "gpu": False,
        "user": "",
        "cwd": "/",
        "report_fd": -1,
    }
    script = str(Path(__file__).with_name("launch.py"))
    argv = [sys.executable, "-I", "-S", script, json.dumps(spec), "--", "/bin/true"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TRIAL_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
