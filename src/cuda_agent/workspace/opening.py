"""A workspace opened for a verdict: its reference, and its candidate frozen or refused."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.config import Scope
from cuda_agent.errors import WorkspaceError
from cuda_agent.result import Result, Stage
from cuda_agent.task import Task
from cuda_agent.workspace.layout import load_workspace_task
from cuda_agent.workspace.snapshot import MODEL_FILE, Snapshot, freeze


def opened(
    workspace: Path, *, task: Task | None, snapshot: Snapshot | None, scope: Scope
) -> tuple[Task, Snapshot | Result]:
    """The reference (``task``, else the workspace's own), and what to judge or the verdict that stands.

    A candidate that holds what it must not (links, too much) gets a verdict, or it could dodge its -1.

    Raises:
        WorkspaceError: no such folder, or files missing.
        TaskError: the workspace's own reference is none.
    """
    if not workspace.is_dir():
        raise WorkspaceError(
            f"{workspace} is not a folder", "Name a workspace (cuda-agent new lays one out)."
        )
    reference = task or load_workspace_task(workspace)
    try:
        return reference, snapshot or freeze(workspace)
    except WorkspaceError as error:
        if not (workspace / MODEL_FILE).is_file():
            raise
        return reference, unfreezable(str(error), scope, reference, task_given=task is not None)


def unfreezable(detail: str, scope: Scope, reference: Task, *, task_given: bool) -> Result:
    """The verdict on a candidate that cannot be frozen."""
    return Result(
        stage=Stage.BUILD,
        correct=False,
        reward=-1 if scope is Scope.FULL else None,
        detail=detail,
        reference="task" if task_given else "unverified",
        task_hash=reference.hash,
    )
