"""What ``utils/*.py`` of a workspace run: ask the service, or judge in this process where none runs."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def run(command: str, workspace: Path) -> int:
    """Run ``compile``, ``verify`` or ``profile``, print its lines, and return the exit status."""
    try:
        if address := os.environ.get("CUDA_AGENT_SOCKET"):
            return _ask(address, command)
        return _run_here(command, workspace)
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    print(line, flush=True)


def _ask(address: str, command: str) -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address)
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    message = json.loads(line)
                    if "exit" in message:
                        return int(message["exit"])
                    _say(message["line"])
    except (OSError, ValueError) as error:
        print(f"[ERROR] the judge does not answer: {error}", file=sys.stderr)
        return 2
    print("[ERROR] the judge went away before it was done", file=sys.stderr)
    return 2


def _run_here(command: str, workspace: Path) -> int:
    from cuda_agent.config import Scope
    from cuda_agent.errors import CudaAgentError
    from cuda_agent.judge import judge
    from cuda_agent.result import Result
    from cuda_agent.workspace.commands import run_command
    from cuda_agent.workspace.layout import read_settings
    from cuda_agent.workspace.snapshot import Snapshot

    def judge_here(scope: Scope, snapshot: Snapshot, say: Callable[[str], None]) -> Result:
        config = settings.judge_config()
        return judge(workspace, config=config, scope=scope, progress=say, snapshot=snapshot)

    try:
        settings = read_settings(workspace)
    except CudaAgentError as error:
        _say(f"[ERROR] {error}")
        return 2
    return run_command(command, workspace, judge_here, _say, settings=settings)
