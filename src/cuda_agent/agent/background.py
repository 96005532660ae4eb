"""Commands that run beside the shell: started with its directory and exported variables, read later."""

from __future__ import annotations

import itertools
import os
import selectors
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cuda_agent.agent.leftovers import kill_marked
from cuda_agent.agent.output import HeadTail
from cuda_agent.agent.shell import MAX_STREAM_BYTES, start_bash


class BackgroundCommand:
    """One command in a process group of its own, its output drained by a thread.

    Raises:
        InfrastructureError: it cannot be started.
    """

    def __init__(
        self, command: str, *, workspace: Path, cwd: Path, env: Mapping[str, str], keep_bytes: int
    ) -> None:
        self.command = command
        self._mark = uuid.uuid4().hex
        self._kept = HeadTail(keep_bytes)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._note = ""
        self._output, child_out = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._process = start_bash(
                ("-c", command),
                workspace=workspace,
                cwd=cwd,
                env=env,
                mark=self._mark,
                stdin=nothing,
                stdout=child_out,
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(child_out)
            os.close(nothing)
        self._reader = threading.Thread(target=self._read, name="background output", daemon=True)
        self._reader.start()

    def take(self) -> str:
        """What it printed since the last call."""
        if self._process.poll() is not None:
            self._reader.join(0.2)  # the last words may still be in the pipe
        with self._lock:
            return self._kept.take()

    def status(self) -> str:
        """``running``, ``exited with status N`` or why it was stopped."""
        code = self._process.poll()
        if code is None:
            return "running"
        return self._note or (f"exited with status {code}" if code >= 0 else f"ended by signal {-code}")

    def kill(self) -> None:
        """Kill it and everything it started; may run twice."""
        if self._process.poll() is None:
            self._note = self._note or "killed"
        kill_marked(self._mark)
        self._process.kill_group()
        self._stop.set()
        if threading.current_thread() is not self._reader:
            self._reader.join(2)

    def _read(self) -> None:
        received = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while not self._stop.is_set():
                if not selector.select(0.1):
                    continue
                data = os.read(self._output, 65_536)
                if not data:
                    break
                with self._lock:
                    self._kept.add(data)
                received += len(data)
                if received > MAX_STREAM_BYTES and not self._note:
                    self._note = f"stopped after {MAX_STREAM_BYTES >> 20} MiB of output"
                    self.kill()
        with suppress(OSError):
            os.close(self._output)


class BackgroundCommands:
    """All background commands of one toolbox, by id (``bash_1``, ``bash_2``, ...)."""

    def __init__(self, *, keep_bytes: int = 65_536) -> None:
        self._keep_bytes = keep_bytes
        self._commands: dict[str, BackgroundCommand] = {}
        self._numbers = itertools.count(1)

    def start(self, command: str, *, workspace: Path, cwd: Path, env: Mapping[str, str]) -> str:
        """Start a command; its id."""
        started = BackgroundCommand(
            command, workspace=workspace, cwd=cwd, env=env, keep_bytes=self._keep_bytes
        )
        name = f"bash_{next(self._numbers)}"
        self._commands[name] = started
        return name

    def get(self, name: str) -> BackgroundCommand | None:
        """The command of that id, if any."""
        return self._commands.get(name)

    def names(self) -> list[str]:
        """All ids."""
        return list(self._commands)

    def close(self) -> None:
        """Kill all; may run twice."""
        for command in self._commands.values():
            command.kill()
