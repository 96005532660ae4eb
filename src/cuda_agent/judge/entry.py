"""One verdict on one workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.judge.session import JudgeSession
from cuda_agent.result import Result
from cuda_agent.task import Task
from cuda_agent.workspace.opening import opened
from cuda_agent.workspace.snapshot import Snapshot

FAILURE_FILE = ".cuda_agent/failure.pt"
"""Where a failed public check leaves its inputs and outputs, for ``cuda-agent explain``."""


def judge(
    workspace: Path,
    *,
    task: Task | None = None,
    config: JudgeConfig | None = None,
    scope: Scope = Scope.FULL,
    progress: Callable[[str], None] | None = None,
    snapshot: Snapshot | None = None,
) -> Result:
    """Judge the candidate in a workspace, in a clean folder and in processes of its own.

    Args:
        workspace: folder with ``model_new.py`` and ``kernels/`` (public layout).
        task: the reference; default: the folder's ``model.py`` (the result then says ``unverified``).
        config: contract and device.
        scope: how much to do; only the full scope gives a reward.
        progress: receives lines such as ``[PASS] check 1/5``, and what is under way.
        snapshot: judge these files instead of the folder's.

    Returns:
        The verdict; a wrong candidate is a verdict, not an error.

    Raises:
        UsageError, WorkspaceError: no such folder, or files missing.
        TaskError: the reference cannot be judged.
        ToolchainError: no such device, or no compiler.
    """
    reference, frozen = opened(workspace, task=task, snapshot=snapshot, scope=scope)
    if isinstance(frozen, Result):
        return frozen
    with JudgeSession(reference, config or JudgeConfig(), task_given=task is not None) as session:
        result = session.judge(frozen, scope, progress)
        keep_failure(workspace, scope, session.last_saved)
    return result


def keep_failure(workspace: Path, scope: Scope, saved: Mapping[str, Any] | None) -> None:
    """Leave a failed public check's inputs and outputs in the workspace, or remove an older one's.

    Private checks are never shown.
    """
    import torch

    path = workspace / FAILURE_FILE
    if scope is Scope.FULL:
        return
    if saved is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    torch.save(dict(saved), path)
