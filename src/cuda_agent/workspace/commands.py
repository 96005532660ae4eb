"""The three commands of a workspace, wherever they run: freeze, judge, print, keep the extension.

Used by the service (commands sent from the agent's shell) and by the scripts themselves where no
service runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from cuda_agent.config import Scope
from cuda_agent.errors import CudaAgentError, InfrastructureError, UsageError
from cuda_agent.result import Result
from cuda_agent.workspace.layout import WorkspaceSettings
from cuda_agent.workspace.snapshot import Snapshot, freeze
from cuda_agent.workspace.text import passed, result_lines

COMMANDS = {"compile": Scope.BUILD, "verify": Scope.VERIFY, "profile": Scope.PROFILE}
JudgeFunction = Callable[[Scope, Snapshot, Callable[[str], None]], Result]


def scope_of(command: str) -> Scope:
    """Scope of a command's name.

    Raises:
        UsageError: no such command.
    """
    if command not in COMMANDS:
        raise UsageError(f"no command {command!r}", f"Choose one of: {', '.join(COMMANDS)}.")
    return COMMANDS[command]


def run_command(
    command: str,
    workspace: Path,
    judge: JudgeFunction,
    say: Callable[[str], None],
    *,
    settings: WorkspaceSettings,
    on_result: Callable[[Scope, Snapshot, Result], None] | None = None,
) -> int:
    """Run one command and return its exit status; ``say`` receives each line to print.

    Errors meant for a user are printed like any other outcome (status 2): the agent reads them.
    """
    last = ""

    def progress(line: str) -> None:
        nonlocal last
        last = line
        say(line)

    try:
        scope = scope_of(command)
        snapshot = freeze(workspace)
        result = judge(scope, snapshot, progress)
        if on_result is not None:
            on_result(scope, snapshot, result)
        if scope is Scope.BUILD:
            try:
                _leave_extension(workspace, snapshot, result, settings)
            except OSError as error:
                raise InfrastructureError(
                    f"the extension cannot be put into the workspace: {error.strerror}",
                    "Free space, or clear away what is in its place.",
                ) from None
    except CudaAgentError as error:
        say(f"[ERROR] {error}")
        return 2
    for line in result_lines(scope, result, last_progress=last):
        say(line)
    if result.infrastructure is not None:
        return 2
    return 0 if passed(scope, result) else 1


def _leave_extension(
    workspace: Path, snapshot: Snapshot, result: Result, settings: WorkspaceSettings
) -> None:
    """Put ``cuda_extension.so`` in the workspace for the agent's own scripts; the judge never loads it.

    A build that fails takes the old one away, as the public script does: no test runs on stale code.
    """
    from cuda_agent.backends import get_backend
    from cuda_agent.judge.build import LIBRARY, build, copy_library

    target = workspace / LIBRARY
    if not result.compiled:
        target.unlink(missing_ok=True)
        return
    config = settings.judge_config()
    with tempfile.TemporaryDirectory(prefix="cuda-agent-so-") as folder:
        outcome = build(
            snapshot,
            get_backend(config.device),
            track=config.track,
            folder=Path(folder) / "build",
            limit_s=config.build_limit_s,
        )
        copy_library(outcome, target)
