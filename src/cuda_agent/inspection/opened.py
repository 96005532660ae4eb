"""A candidate named by a folder: a workspace, or a finished run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.runs.run_folder import RunFolder
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.task import Task
from cuda_agent.workspace.layout import load_workspace_task, read_settings
from cuda_agent.workspace.snapshot import Snapshot, freeze


@dataclass(frozen=True)
class Opened:
    """What a folder names.

    Attributes:
        snapshot: the candidate's files.
        task: its reference.
        config: the contract it was made under; ``device`` and ``gpu`` as asked for.
        workspace: folder in which the judge leaves failing inputs.
        run: the run, where the folder is one.
    """

    snapshot: Snapshot
    task: Task
    config: JudgeConfig
    workspace: Path
    run: RunFolder | None


def open_candidate(folder: Path, config: JudgeConfig) -> Opened:
    """Read a workspace or a finished run.

    Args:
        folder: either of both.
        config: what the caller asked for; a run's own contract holds in its place, and a workspace's
            backend where ``device`` is ``auto``.

    Raises:
        WorkspaceError: neither, or it holds no candidate.
        UsageError, TaskError: its reference cannot be read.
    """
    run = RunFolder(folder.resolve())
    if run.settings.is_file() and run.candidate.is_dir():
        own = OptimizeSettings.from_dict(run.load_settings()).judge
        return Opened(
            freeze(run.candidate), run.load_task(), replace(own, gpu=config.gpu), run.workspace, run
        )
    if run.settings.is_file() and run.workspace.is_dir():
        folder = run.workspace  # a run that ended before any version was saved
    snapshot, task = freeze(folder), load_workspace_task(folder)
    if config.device is Device.AUTO:
        config = replace(config, device=read_settings(folder).backend)
    return Opened(snapshot, task, config, folder, None)
