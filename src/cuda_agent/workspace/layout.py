"""The folder an agent works in: the public layout, with our fixed files.

Fixed files serve the agent only: the judge uses its own copies, whatever the folder holds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from cuda_agent.config import Device, JudgeConfig, Precision, Track
from cuda_agent.errors import ToolchainError, UsageError, WorkspaceError
from cuda_agent.task import Task, weights_beside
from cuda_agent.workspace.scaffold import starter
from cuda_agent.workspace.snapshot import KERNEL_DIR, MODEL_FILE

TASK_FILE = "model.py"
SKILL_FILE = "SKILL.md"
SETTINGS_FILE = "utils/settings.json"


@dataclass(frozen=True)
class WorkspaceSettings:
    """What the scripts of a workspace need to know; a public workspace has none and gets the defaults.

    Attributes:
        name: the task's name.
        backend: ``cpu`` or ``cuda``; ``auto`` lets the machine decide.
        track, precision: contract judged under.
        search_path: folders for the task's own imports.
        python: interpreter that laid the folder out; its scripts fall back on it.
        python_path: folder to import cuda_agent from where it is not installed.
    """

    name: str = "task"
    backend: Device = Device.AUTO
    track: Track = Track.MATCHED
    precision: Precision = Precision.DEFAULT
    search_path: tuple[str, ...] = ()
    python: str = ""
    python_path: str = ""

    def judge_config(self) -> JudgeConfig:
        """Judge settings for this workspace.

        Raises:
            UsageError: the contract does not fit together.
        """
        return JudgeConfig(device=self.backend, track=self.track, precision=self.precision)


def create(folder: Path, task: Task, *, backend: str, track: Track, precision: Precision) -> None:
    """Lay out a workspace for a task.

    Raises:
        WorkspaceError: the folder already holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(f"{folder} is not empty", "Choose a folder that does not exist yet.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KERNEL_DIR).mkdir()
    (folder / MODEL_FILE).write_text(starter(task.code), encoding="utf-8")
    write_fixed(folder, task, backend=backend, track=track, precision=precision)


def write_fixed(folder: Path, task: Task, *, backend: str, track: Track, precision: Precision) -> None:
    """Write the fixed files of a workspace, replacing those there; the candidate's are left alone."""
    settings = WorkspaceSettings(
        name=task.name,
        backend=Device(backend),
        track=track,
        precision=precision,
        search_path=task.search_path,
        python=sys.executable,
        python_path=str(source_root()),
    )
    contents: dict[str, bytes] = dict(_package_files(resources.files("cuda_agent.workspace") / "files"))
    contents[TASK_FILE] = task.code.encode()
    contents[SKILL_FILE] = _skill(backend, track, precision).encode()
    contents[SETTINGS_FILE] = json.dumps(asdict(settings), indent=1).encode()
    for name, path in task.assets.items():
        contents[name] = path.read_bytes()
    for name, content in contents.items():
        _write_read_only(folder / name, content)


def load_workspace_task(workspace: Path) -> Task:
    """The task of a workspace: its ``model.py`` and the files beside it that the code reads.

    Raises:
        WorkspaceError: no ``model.py``.
        TaskError: see :meth:`cuda_agent.task.Task.check_names`.
    """
    path = workspace / TASK_FILE
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise WorkspaceError(
            f"{workspace} has no readable {TASK_FILE}", "Name the task: --task FILE, or restore model.py."
        ) from None
    settings = read_settings(workspace)
    assets = weights_beside(workspace, code)
    search_path = settings.search_path or (str(workspace.resolve()),)
    task = Task(code=code, name=settings.name, assets=assets, search_path=search_path)
    task.check_names()
    return task


def read_settings(workspace: Path) -> WorkspaceSettings:
    """Settings of a workspace; the defaults for a public one.

    Raises:
        WorkspaceError: the file is not what we wrote.
    """
    path = workspace / SETTINGS_FILE
    if not path.is_file():
        return WorkspaceSettings(name=workspace.resolve().name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["search_path"] = tuple(data["search_path"])
        for key, kind in (("backend", Device), ("track", Track), ("precision", Precision)):
            data[key] = kind(data[key])
        settings = WorkspaceSettings(**data)
        settings.judge_config()
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        raise WorkspaceError(f"{path} cannot be read", "Lay the workspace out again.") from None
    return settings


def source_root() -> Path:
    """The folder that ``cuda_agent`` is imported from."""
    return Path(__file__).resolve().parents[2]


def _skill(backend: str, track: Track, precision: Precision) -> str:
    from cuda_agent.backends import get_backend
    from cuda_agent.skills import skill_text, unknown_facts

    try:
        facts = get_backend(Device(backend)).facts()
    except ToolchainError:
        # Laying out is possible where the device is not: the text then says what is unknown.
        facts = unknown_facts(backend)
    return skill_text(backend, track=track, precision=precision, facts=facts)


def _package_files(folder: Traversable, prefix: str = "") -> Mapping[str, bytes]:
    contents: dict[str, bytes] = {}
    for item in folder.iterdir():
        if item.name == "__pycache__":
            continue
        if item.is_dir():
            contents |= _package_files(item, f"{prefix}{item.name}/")
        else:
            contents[prefix + item.name] = item.read_bytes()
    return contents


def _write_read_only(path: Path, content: bytes) -> None:
    """Replace a file; read-only, which tells an honest agent that it is fixed (it protects nothing)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.chmod(0o444)
    temporary.replace(path)
