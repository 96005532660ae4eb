"""The folder one run writes, and how its parts are read back.

::

    settings.json       resolved configuration
    task/               the reference: model.py, its assets, task.json
    workspace/          the folder the policy worked in
    snapshots/          every version a public script judged, and results.jsonl beside them
    trajectory.jsonl    the episode
    candidate/          the version that was judged at the end
    result.json         its verdict
    summary.md          all of it for people
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import InfrastructureError, UsageError
from cuda_agent.result import Result
from cuda_agent.task import Task
from cuda_agent.tasks.targets import load_task_file, save_task

DEFAULT_ROOT = Path("cuda-agent-out")


class RunFolder:
    """Paths of a run, and its small files; every write replaces the file in one step.

    Args:
        root: the folder (``--out``).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = root / "settings.json"
        self.task = root / "task"
        self.workspace = root / "workspace"
        self.snapshots = root / "snapshots"
        self.trajectory = root / "trajectory.jsonl"
        self.candidate = root / "candidate"
        self.result = root / "result.json"
        self.summary = root / "summary.md"

    @classmethod
    def create(cls, root: Path | None, name: str) -> RunFolder:
        """A new, empty folder: ``root``, or the first free of ``cuda-agent-out/NAME[-N]``.

        Raises:
            UsageError: the folder already holds something, or cannot be made.
        """
        chosen = root or _free(DEFAULT_ROOT / name)
        check_free(chosen)
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {chosen}: {error.strerror}", "Name another --out.") from None
        return cls(chosen.resolve())

    @classmethod
    def open(cls, root: Path) -> RunFolder:
        """An existing run.

        Raises:
            UsageError: it is none.
        """
        folder = cls(root.resolve())
        if not folder.settings.is_file() or not (folder.task / "model.py").is_file():
            raise UsageError(f"{root} is no run of cuda-agent optimize", "Name the folder it wrote (--out).")
        return folder

    def save_task(self, task: Task) -> None:
        """Write the reference."""
        with writing(self.task):
            save_task(task, self.task)

    def load_task(self) -> Task:
        """Read the reference.

        Raises:
            UsageError, TaskError: it is not there or was damaged.
        """
        return load_task_file(self.task / "model.py")

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the resolved configuration."""
        write_text(self.settings, json.dumps(settings, indent=2) + "\n")

    def load_settings(self) -> dict[str, Any]:
        """Read the resolved configuration.

        Raises:
            UsageError: not there, or damaged.
        """
        data = read_json(self.settings)
        if not isinstance(data, dict):
            raise UsageError(f"{self.settings} holds no object", "Run cuda-agent optimize again.")
        return data

    def save_result(self, result: Result) -> None:
        """Write the verdict."""
        write_text(self.result, result.to_json(indent=2) + "\n")

    def load_result(self) -> Result | None:
        """Read the verdict; ``None`` where none was reached.

        Raises:
            UsageError: the file is damaged.
        """
        if not self.result.is_file():
            return None
        try:
            return Result.from_dict(read_json(self.result))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.result} is no result: {error}", "Judge the candidate again.") from None


def check_free(root: Path | None) -> None:
    """Whether a run can start in ``root``.

    Raises:
        UsageError: it holds something, or cannot be made.
    """
    if root is None:
        return
    try:
        existing = next(path for path in (root, *root.absolute().parents) if path.exists())
        filled = existing == root and root.is_dir() and any(root.iterdir())
    except OSError as error:
        raise UsageError(f"cannot use {root}: {error.strerror}", "Name another --out.") from None
    if not existing.is_dir():
        raise UsageError(f"{existing} is not a folder", "Name another --out.")
    if filled:
        resume = ", or continue it with --resume" if RunFolder(root).settings.is_file() else ""
        raise UsageError(f"{root} is not empty", f"Name another --out{resume}.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {existing}", "Name another --out.")


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step: a full disk leaves the old one whole.

    Raises:
        InfrastructureError: it cannot be written.
    """
    with writing(path):
        part = path.with_name(f".{path.name}.part")
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UsageError: not there, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


class writing:  # lower case: it reads as a statement, with writing(path)
    """Turns an ``OSError`` of the block into an :class:`InfrastructureError` about ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise InfrastructureError(
                f"cannot write {self._path}: {error.strerror or error}",
                "Free space or choose another --out.",
            ) from None


def _free(path: Path) -> Path:
    candidates = (path.with_name(f"{path.name}-{n}") if n > 1 else path for n in range(1, 10_000))
    return next(p for p in candidates if not p.exists())
