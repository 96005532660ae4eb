"""Rows of a taskset's source, one at a time, unchecked: folders, Parquet, JSONL, the hub."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent.errors import TaskError, UsageError
from cuda_agent.task import Task, load_task

HUB_SET = "ScalingIntelligence/KernelBench"
_OWN_COLUMNS = ("code", "level", "problem_id", "name", "ops", "data_source", "id")
_LEVEL = re.compile(r"level[_ ]?(\d+)", re.IGNORECASE)
_NUMBERED = re.compile(r"(\d+)_.*")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        where: file and row, for messages.
        code: source text, or the path of a file to read.
        key: id where the source has one of its own.
        name, level, problem_id, ops, data_source: as in the source; empty or ``None`` where unknown.
        columns: every further column.
    """

    where: str
    code: object
    key: str = ""
    name: str = ""
    level: int | None = None
    problem_id: int | None = None
    ops: tuple[str, ...] = ()
    data_source: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)

    def task(self) -> Task:
        """The row's task.

        Raises:
            UsageError, TaskError: it is none.
        """
        if isinstance(self.code, Path):
            return replace(load_task(self.code), data_source=self.data_source)
        if not isinstance(self.code, str) or not self.code.strip():
            raise TaskError("it has no code")
        name = self.name or self.key or "task"
        task = Task(code=self.code, name=name, ops=self.ops, data_source=self.data_source)
        task.check_names()
        return task if self.name or self.key else replace(task, name=f"task_{task.hash}")


def read_rows(source: str) -> Iterator[Row]:
    """The rows of a source (see :mod:`cuda_agent.tasks.taskset`).

    Raises:
        UsageError: no such source, or it cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        return _folder_rows(path)
    if source.lower() in ("kernelbench", HUB_SET.lower()) and not path.exists():
        return _hub_rows()
    if not path.is_file():
        raise UsageError(
            f"there is no taskset {source}", "Name a folder of modules, a .parquet or .jsonl, or kernelbench."
        )
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path)
    if path.suffix == ".py":
        return iter([_file_row(path, path.parent)])
    raise UsageError(f"{source} is no taskset", "Name a folder of modules, a .parquet or a .jsonl file.")


# -- folders ----------------------------------------------------------------------------------


def _folder_rows(folder: Path) -> Iterator[Row]:
    inner = folder / "KernelBench"  # a checkout of the benchmark holds more Python than its tasks
    root = inner if inner.is_dir() and any(inner.glob("level*")) else folder
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if path.name == "__init__.py" or any(part.startswith((".", "__pycache__")) for part in parts):
            continue
        yield _file_row(path, root)


def _file_row(path: Path, root: Path) -> Row:
    relative = path.relative_to(root).with_suffix("")
    level = _LEVEL.fullmatch(path.parent.name)
    number = _NUMBERED.fullmatch(path.stem) if level else None
    return Row(
        where=str(path),
        code=path,
        key=relative.as_posix(),
        name=path.stem,
        level=int(level[1]) if level else None,
        problem_id=int(number[1]) if number else None,
    )


# -- files of rows ----------------------------------------------------------------------------


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "a .parquet taskset needs pyarrow", "Install it: pip install 'cuda-agent[data]'."
        ) from None
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Name a Parquet file.") from None
    if "code" not in table.column_names:
        raise UsageError(f"{path} has no column code", f"It has: {', '.join(table.column_names)}.")
    for number, values in enumerate(table.to_pylist()):
        yield _values_row(values, f"{path}: row {number}")


def _jsonl_rows(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        yield _values_row(values if isinstance(values, dict) else {}, f"{path}: line {number}")


def _values_row(values: Mapping[str, Any], where: str) -> Row:
    named = values.get("name")
    return Row(
        where=f"{where} ({named})" if named else where,
        code=values.get("code"),
        key=_text(values.get("id")),
        name=_text(named),
        level=_number(values.get("level")),
        problem_id=_number(values.get("problem_id")),
        ops=_ops(values.get("ops")),
        data_source=_text(values.get("data_source")),
        columns={key: value for key, value in values.items() if key not in _OWN_COLUMNS},
    )


def _hub_rows() -> Iterator[Row]:
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError(
            "the taskset kernelbench needs huggingface_hub", "Install it: pip install 'cuda-agent[data]'."
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            HUB_SET, repo_type="dataset", allow_patterns=["data/*.parquet"]
        )
    except Exception as error:  # noqa: BLE001  the client raises its own, its transport's and the system's
        why = " ".join(str(error).split())[:200]
        raise UsageError(
            f"the hub's set {HUB_SET} cannot be had: {type(error).__name__}: {why}",
            "Connect this machine, or name a copy: a folder or a .parquet file.",
        ) from None
    files = sorted(Path(folder).glob("data/*.parquet"))
    if not files:
        raise UsageError(f"the hub's set {HUB_SET} holds no data/*.parquet", "Name a copy of it instead.")
    for path in files:
        yield from _parquet_rows(path)


# -- cells ------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """A whole number, or the one in ``level_1``."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if value == int(value) else None
    found = re.fullmatch(r"\D*(\d+)", str(value))
    return int(found[1]) if found else None


def _ops(value: object) -> tuple[str, ...]:
    """Operator names from a list, from the text of a list, or from names between commas."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            value = [part.strip() for part in str(value).split(",") if part.strip()]
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
