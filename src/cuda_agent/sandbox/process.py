"""Processes that run code we do not trust: own session and group, clean environment, limits, no network.

Whoever starts one owns its group and reaps it; tear-down may run twice.

Covers: a child or grandchild left running (group kill), secrets in the environment, network (as root),
memory, file size and process count. Does not cover: a grandchild that starts a session of its own, and
reads of the host's files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TERM", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TMPDIR")
_KEPT_PREFIXES = ("CUDA_AGENT_", "OPENBLAS_", "NVIDIA_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@dataclass(frozen=True)
class Limits:
    """Limits of one process tree; ``None`` leaves the limit as it is.

    Attributes:
        memory_bytes: address space. Leave ``None`` with CUDA, which reserves far more than it uses.
        file_bytes: largest file written.
        processes: number of processes and threads of the user.
        cpu_s: processor time of each process, seconds; ends descendants that outlive us, too.
        network: leave the network reachable.
        die_with_parent: kill when the starting thread's process dies.
    """

    memory_bytes: int | None = None
    file_bytes: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    network: bool = False
    die_with_parent: bool = True


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without secrets, proxies and PyTorch switches, plus ``extra``."""
    env = {
        name: value
        for name, value in os.environ.items()
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES))
        and not any(word in name for word in _SECRET_WORDS)
    }
    env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env.update(extra or {})
    return env


def spawn(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    limits: Limits | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
) -> Process:
    """Start ``argv`` in a session of its own under ``limits``.

    Raises:
        OSError: the interpreter or the folder is missing.
    """
    launcher = [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("launch.py")),
        json.dumps(asdict(limits or Limits())),
        "--",
    ]
    popen = subprocess.Popen(
        [*launcher, *argv],
        cwd=cwd,
        env=dict(env),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    return Process(popen)


class Process:
    """A started process and its group."""

    def __init__(self, popen: subprocess.Popen[Any]) -> None:
        self.popen = popen
        self.pid = popen.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal, or ``None`` while it runs."""
        return self.popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; ``None`` when the time ran out."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill_group(self) -> None:
        """Kill the whole group and reap the process; may run twice."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
