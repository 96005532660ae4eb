"""A bash that lives across commands: working directory, variables and functions survive.

One pipe carries output, one the commands (each ended by NUL, so that no quoting can break it), one the
exit statuses. The status pipe is closed for commands: background children cannot keep it open, and its
end means that the shell itself is gone.

Covers: commands that kill the shell (``exit``, ``exec``), print without end, read stdin (empty), leave
children behind, or run past their time. Then the shell starts anew and says that its state is lost.
Does not cover: what a command does to the workspace; what else it sees is in docs/isolation.md.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import shutil
import termios
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.agent.leftovers import MARK, kill_marked
from cuda_agent.agent.output import HeadTail
from cuda_agent.errors import InfrastructureError
from cuda_agent.sandbox.process import Limits, Process, spawn
from cuda_agent.sandbox.view import View

_PROCESSES = 4096
_TMP_BYTES = 4 << 30
MAX_STREAM_BYTES = 64 * 2**20
"""A command that prints more than this is stopped."""

# "builtin", so that a function of the same name made by a command does no harm.
_READ_AND_RUN = (
    'IFS= builtin read -r -d "" -u {commands} __cuda_agent_command; '
    'builtin eval "$__cuda_agent_command" </dev/null {commands}<&- {statuses}>&-; '
    'builtin printf "%s\\n" "$?" >&{statuses}\n'
)
_STATE_LOST = "the shell was restarted in the workspace: its directory, variables and jobs are lost"


@dataclass(frozen=True)
class CommandResult:
    """What one command did.

    Attributes:
        output: stdout and stderr in order, printable; the middle of a very long one is left out.
        exit_code: the status, or ``None`` when the command did not end by itself.
        note: what befell the shell, for the policy to read; empty when it lives on.
    """

    output: str
    exit_code: int | None
    note: str = ""


class Shell:
    """A persistent bash in a process group of its own. Starts on first use; ``close`` may run twice.

    Args:
        workspace: folder it starts in.
        env: its whole environment.
        keep_bytes: bytes kept of each end of an output.
    """

    def __init__(self, workspace: Path, env: Mapping[str, str], *, keep_bytes: int = 65_536) -> None:
        self._workspace = workspace
        self._env = env
        self._keep_bytes = keep_bytes
        self._live: _Live | None = None

    def run(self, command: str, *, limit_s: float) -> CommandResult:
        """Run one command, at most ``limit_s`` seconds.

        Raises:
            InfrastructureError: no shell can be started here.
        """
        kept = HeadTail(self._keep_bytes)
        live = self._started()
        try:
            status, note = live.exchange(command, kept, deadline=time.monotonic() + limit_s)
        except BaseException:  # Ctrl-C above all: a shell in the middle of a command is of no use
            self.close()
            raise
        if note or status is None:
            self.close()
            ended = f"the shell exited with status {live.exit_code}" if status is None and not note else note
            return CommandResult(kept.take(), live.exit_code if not note else None, f"{ended}; {_STATE_LOST}")
        return CommandResult(kept.take(), status)

    def environment(self) -> dict[str, str]:
        """The shell's exported variables now, ``PWD`` among them; those it began with if it cannot say."""
        kept = HeadTail(2**20)
        try:
            status, note = self._started().exchange("env -0", kept, deadline=time.monotonic() + 5)
        except BaseException:
            self.close()
            raise
        if note or status is None:
            self.close()
        pairs = (
            item.partition("=") for item in kept.take_bytes().decode(errors="surrogateescape").split("\0")
        )
        found = {name: value for name, mark, value in pairs if mark and name}
        return found if status == 0 and "PATH" in found else dict(self._env)

    def close(self) -> None:
        """Kill the shell and everything it started."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _started(self) -> _Live:
        if self._live is not None and self._live.process.poll() is not None:
            self.close()
        if self._live is None:
            self._live = _Live(self._workspace, self._env)
        return self._live


def start_bash(
    arguments: tuple[str, ...],
    *,
    workspace: Path,
    cwd: Path,
    env: Mapping[str, str],
    mark: str,
    stdin: int,
    stdout: int,
    pass_fds: tuple[int, ...] = (),
) -> Process:
    """Start bash, sandboxed and marked, stderr into stdout; of our folders it sees the workspace only.

    Raises:
        InfrastructureError: no bash, or the folder is gone.
    """
    if shutil.which("bash", path=env.get("PATH")) is None:
        raise InfrastructureError("there is no bash on PATH", "Install bash.")
    try:
        return spawn(
            ("bash", "--noprofile", "--norc", *arguments),
            cwd=cwd,
            env={**env, MARK: mark},
            limits=Limits(processes=_PROCESSES, tmp_bytes=_TMP_BYTES),
            view=View(write=(workspace,), read=_judge_folder(env), own_user=False),
            pass_fds=pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
        )
    except OSError as error:
        raise InfrastructureError(f"cannot start a shell in {cwd}: {error.strerror}") from None


def _judge_folder(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the judge's socket is, if one answers."""
    address = env.get("CUDA_AGENT_SOCKET")
    return (Path(address).parent,) if address else ()


class _Live:
    """One running bash and its pipes."""

    def __init__(self, workspace: Path, env: Mapping[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        self.exit_code: int | None = None
        child_in, self._stdin = os.pipe()
        child_commands, self._commands = os.pipe()
        self._output, child_out = os.pipe()
        self._statuses, child_statuses = os.pipe()
        self._mine = [self._stdin, self._commands, self._output, self._statuses]
        self._line = _READ_AND_RUN.format(commands=child_commands, statuses=child_statuses).encode()
        try:
            self.process = start_bash(
                (),
                workspace=workspace,
                cwd=workspace,
                env=env,
                mark=self._mark,
                stdin=child_in,
                stdout=child_out,
                pass_fds=(child_commands, child_statuses),
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for fd in (child_in, child_commands, child_out, child_statuses):
                os.close(fd)
        os.set_blocking(self._commands, False)

    def exchange(self, command: str, kept: HeadTail, *, deadline: float) -> tuple[int | None, str]:
        """Status of the command, ``None`` when the shell ended; a note when it had to be stopped."""
        self._pending = memoryview(command.encode(errors="backslashreplace") + b"\0")
        limit_s = deadline - time.monotonic()
        status = None
        with selectors.DefaultSelector() as selector, suppress(BrokenPipeError):
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._statuses, selectors.EVENT_READ)
            selector.register(self._commands, selectors.EVENT_WRITE)
            os.write(self._stdin, self._line)
            while (left_s := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(min(0.1, left_s))}
                status = self._move(ready, kept, selector)
                if kept.total > MAX_STREAM_BYTES:
                    return None, f"stopped after {MAX_STREAM_BYTES >> 20} MiB of output"
                if status is not None or self.process.poll() is not None:
                    self._drain(kept)
                    break
            else:
                return None, f"timed out after {limit_s:.3g} s: the command and all it started were killed"
        if status is None:
            self.exit_code = self.process.wait(5)
        return status, ""

    def _move(self, ready: set[int], kept: HeadTail, selector: selectors.BaseSelector) -> int | None:
        """Move what the pipes are ready for; the command's status, once it comes."""
        if self._commands in ready:
            self._pending = self._pending[os.write(self._commands, self._pending) :]
            if not self._pending:
                selector.unregister(self._commands)
        if self._output in ready:
            data = os.read(self._output, 65_536)
            kept.add(data)
            if not data:
                selector.unregister(self._output)
        if self._statuses in ready:
            if line := os.read(self._statuses, 64):
                return int(line)
            selector.unregister(self._statuses)  # bash is gone, or has become another program
        return None

    def _drain(self, kept: HeadTail) -> None:
        """Read what is in the pipe now: the command wrote it before its status; more may never end."""
        waiting = bytearray(4)
        fcntl.ioctl(self._output, termios.FIONREAD, waiting)
        size = int.from_bytes(waiting, "little")
        while size > 0 and (data := os.read(self._output, size)):
            kept.add(data)
            size -= len(data)

    def close(self) -> None:
        kill_marked(self._mark)
        self.process.kill_group()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in self._mine:
            with suppress(OSError):
                os.close(fd)
        self._mine = []
