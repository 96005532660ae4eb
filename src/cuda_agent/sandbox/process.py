"""Processes that run code we do not trust: own view of the machine, clean environment, limits, no network.

Whoever starts one owns it and reaps it; tear-down may run twice. What is kept apart on which kind of host:
docs/isolation.md.
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

from cuda_agent.sandbox.isolation import Isolation, isolation, isolation_as_ourselves
from cuda_agent.sandbox.view import View

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TERM", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TMPDIR")
_KEPT_PREFIXES = ("CUDA_AGENT_", "OPENBLAS_", "NVIDIA_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_KILL_LIMIT_S = 10.0


@dataclass(frozen=True)
class Limits:
    """Limits of one process tree; ``None`` leaves the limit as it is.

    Attributes:
        memory_bytes: of the whole tree where a control group can be made, else address space of each
            process (not with a GPU: CUDA reserves far more than it uses).
        limit_address_space: address space in any case; a compiler then says that memory ran out.
        tmp_bytes: size of the private /tmp and of /dev/shm, each.
        file_bytes: largest file written.
        processes: number of processes and threads (of the sandbox, or of the user where it has no own).
        cpu_s: processor time of each process, seconds; ends descendants that outlive us, too.
        network: leave the network reachable.
        die_with_parent: kill when the starting thread's process dies.
    """

    memory_bytes: int | None = None
    limit_address_space: bool = False
    tmp_bytes: int = 2 << 30
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
    view: View | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
) -> Process:
    """Start ``argv`` in a session of its own under ``limits``.

    Args:
        argv: the program, found on the PATH of ``env``.
        cwd: its working folder; its own /tmp instead where it has one and may not write there.
        env: its whole environment; HOME and TMPDIR become /tmp where it has a /tmp of its own, and the
            user has a name.
        limits: left out, no limit but network and death with the parent.
        view: what it sees of this machine's files; left out, everything, as our own user.
        pass_fds: descriptors it inherits, beside the three standard ones.
        stdin, stdout, stderr: as in :class:`subprocess.Popen`.

    Raises:
        OSError: the interpreter or the folder is missing.
    """
    mode = Isolation.NONE
    if view is not None:
        mode = isolation() if view.own_user else isolation_as_ourselves()
    env = dict(env)
    if mode is not Isolation.NONE:
        # Named, since libraries ask for the user's name and its id is in no password file.
        env |= {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "sandbox", "LOGNAME": "sandbox"}
    reader, writer = os.pipe()
    spec = {
        **asdict(limits or Limits()),
        **(view or View()).spec(env),
        "mode": str(mode),
        "cwd": str(cwd) if view is None or view.may_write(cwd) else "/tmp",
        "report_fd": writer,
    }
    try:
        popen = subprocess.Popen(
            [*_launcher(spec), *argv],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(*pass_fds, writer),
            start_new_session=True,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return Process(popen, reader, contained=mode is not Isolation.NONE)


def _launcher(spec: Mapping[str, Any]) -> list[str]:
    script = str(Path(__file__).with_name("launch.py"))
    return [sys.executable, "-I", "-S", script, json.dumps(spec), "--"]


class Process:
    """A started process and all that it started."""

    def __init__(self, popen: subprocess.Popen[Any], report: int, *, contained: bool) -> None:
        self.popen = popen
        self.pid = popen.pid
        self._contained = contained
        self._report: int | None = report
        self._reported = b""
        self._oom_kills = _num_oom_kills()

    def poll(self) -> int | None:
        """Exit status, negative for a signal, or ``None`` while it runs."""
        return self.popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; ``None`` when the time ran out."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed in it for want of memory; asked after its end.

        Where no control group counts, a kill for want of memory anywhere on the machine counts.
        """
        said = self._told()
        return b"O" in said or (b"N" not in said and _num_oom_kills() > self._oom_kills)

    def was_launched(self) -> bool:
        """Whether the program was reached; else the sandbox itself failed. Asked after its end."""
        return b"L" in self._told()

    def _told(self) -> bytes:
        """What the launcher has reported (its LAUNCHED, OUT_OF_MEMORY, NOT_OUT_OF_MEMORY)."""
        if self._report is not None:
            os.set_blocking(self._report, False)
            with suppress(BlockingIOError):
                self._reported += os.read(self._report, 16)
        return self._reported

    def kill_group(self) -> None:
        """Kill all of it, reap it, and return when all are dead; may run twice."""
        if self._contained and self.popen.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                self.popen.send_signal(signal.SIGTERM)  # the launcher kills its process 1 and waits
            self.wait(_KILL_LIMIT_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(_KILL_LIMIT_S)
        self._told()
        if self._report is not None:
            os.close(self._report)
            self._report = None
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _num_oom_kills() -> int:
    """Kills for want of memory on this machine since it started; 0 where the kernel does not count."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
