"""Judges for the scripts of one workspace over a Unix socket, so that the agent's shell needs no device.

One JSON line each way in the beginning, ``{"command": "verify"}``; then one line for each line to print
and ``{"exit": 0}`` last. What a client sends chooses the command and nothing else: the workspace, the
task and the contract are the service's own.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cuda_agent.config import Scope
from cuda_agent.result import Result
from cuda_agent.sandbox.scratch import Scratch
from cuda_agent.workspace.commands import JudgeFunction, run_command
from cuda_agent.workspace.layout import read_settings, source_root
from cuda_agent.workspace.snapshot import Snapshot

SOCKET_VARIABLE = "CUDA_AGENT_SOCKET"
_MAX_REQUEST_BYTES = 4096
_REQUEST_LIMIT_S = 10.0
_MAX_SOCKET_PATH = 100  # the kernel's limit is 108 bytes, with the end mark
_log = logging.getLogger(__name__)


class JudgeService:
    """Socket server of one workspace; a context manager. Commands are judged one at a time, in order.

    All judging happens in one thread that lives as long as the service: processes that a judge keeps
    warm die with the thread that started them (the kernel's parent-death signal is by thread).

    Args:
        workspace: the folder whose candidate is judged.
        judge: judges a snapshot; receives the lines to print while it works.
        on_result: told of each result, in the judging thread.
    """

    def __init__(
        self,
        workspace: Path,
        judge: JudgeFunction,
        *,
        on_result: Callable[[Scope, Snapshot, Result], None] | None = None,
    ) -> None:
        self._workspace = workspace.resolve()
        self._judge = judge
        self._on_result = on_result
        # Read once, before the agent can write there.
        self._settings = read_settings(workspace)
        self._jobs: queue.Queue[socket.socket | None] = queue.Queue()
        self._scratch = _short_folder()
        self._folder = self._scratch.path
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._threads = [
            threading.Thread(target=self._accept, name="judge-accept", daemon=True),
            threading.Thread(target=self._work, name="judge-work", daemon=True),
        ]
        self._closed = False

    def __enter__(self) -> JudgeService:
        self._server.bind(str(self._folder / "judge"))
        self._server.listen(16)
        self._write_python()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the command in progress; queued ones are dropped. May run twice."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._scratch.close()

    @property
    def env(self) -> dict[str, str]:
        """Variables to set in the agent's shell: the socket, and a ``python3`` that has cuda_agent."""
        env = {
            SOCKET_VARIABLE: str(self._folder / "judge"),
            "PATH": os.pathsep.join([str(self._folder / "bin"), os.environ.get("PATH", os.defpath)]),
        }
        root = source_root()
        if root.name != "site-packages":
            env["PYTHONPATH"] = str(root)
        return env

    def _write_python(self) -> None:
        """``python3`` and ``python`` as scripts: a link would lose a virtual environment."""
        bin_dir = self._folder / "bin"
        bin_dir.mkdir()
        for name in ("python3", "python"):
            path = bin_dir / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
            path.chmod(0o755)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.settimeout(_REQUEST_LIMIT_S)
            self._jobs.put(connection)

    def _work(self) -> None:
        while (connection := self._jobs.get()) is not None:
            with connection:
                if not self._closed:
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        command = _read_command(connection)
        if command is None:
            return

        def say(line: str) -> None:
            # A client that went away (its shell's time ran out) does not stop the judge.
            with suppress(OSError):
                connection.sendall(json.dumps({"line": line}).encode() + b"\n")

        try:
            status = run_command(
                command,
                self._workspace,
                self._judge,
                say,
                settings=self._settings,
                on_result=self._on_result,
            )
        except Exception as error:  # noqa: BLE001 -- capture point: a fault of ours must not end the service
            _log.exception("the judge failed")
            say(f"[ERROR] the judge itself failed ({type(error).__name__}); this is no verdict")
            status = 2
        with suppress(OSError):
            connection.sendall(json.dumps({"exit": status}).encode() + b"\n")


def _read_command(connection: socket.socket) -> str | None:
    """The command of a request, or ``None`` for a client that went away or sent nonsense."""
    data = b""
    try:
        while b"\n" not in data:
            part = connection.recv(_MAX_REQUEST_BYTES)
            data += part
            if not part or len(data) > _MAX_REQUEST_BYTES:
                return None
        command = json.loads(data)["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return command if isinstance(command, str) else None


def _short_folder() -> Scratch:
    """A private folder whose path leaves room for a socket's name, whatever TMPDIR is."""
    folder = Scratch()
    if len(str(folder.path)) <= _MAX_SOCKET_PATH - len("/judge"):
        return folder
    folder.close()
    return Scratch(Path("/tmp"))
