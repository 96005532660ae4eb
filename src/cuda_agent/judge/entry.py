"""One verdict on one workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.errors import WorkspaceError
from cuda_agent.judge.session import JudgeSession
from cuda_agent.result import Result, Stage
from cuda_agent.task import Task
from cuda_agent.workspace.layout import load_workspace_task
from cuda_agent.workspace.snapshot import Snapshot, freeze

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
        progress: receives lines such as ``[PASS] check 1/5``.
        snapshot: judge these files instead of the folder's.

    Returns:
        The verdict; a wrong candidate is a verdict, not an error.

    Raises:
        UsageError, WorkspaceError: no such folder, or files missing.
        TaskError: the reference cannot be judged.
        ToolchainError: no such device, or no compiler.
    """
    if not workspace.is_dir():
        raise WorkspaceError(
            f"{workspace} is not a folder", "Name a workspace (cuda-agent new lays one out)."
        )
    reference = task or load_workspace_task(workspace)
    try:
        frozen = snapshot or freeze(workspace)
    except WorkspaceError as error:
        if not (workspace / "model_new.py").is_file():
            raise
        # The candidate holds what it must not (links, too much): a verdict, or it could dodge its -1.
        return unfreezable(str(error), scope, reference, task_given=task is not None)
    with JudgeSession(reference, config or JudgeConfig(), task_given=task is not None) as session:
        result = session.judge(frozen, scope, progress)
        keep_failure(workspace, scope, session.last_saved)
    return result


def unfreezable(detail: str, scope: Scope, reference: Task, *, task_given: bool) -> Result:
    """The verdict on a folder that cannot be frozen."""
    return Result(
        stage=Stage.BUILD,
        correct=False,
        reward=-1 if scope is Scope.FULL else None,
        detail=detail,
        reference="task" if task_given else "unverified",
        task_hash=reference.hash,
    )


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
