"""What a stage writes while it runs: ``metrics.jsonl``, and TensorBoard's events where asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.rl.guards import Alarm
from cuda_agent.runs.run_folder import write_text

UNREPEATABLE = ("seconds", "timing")
"""Keys of a row that differ between two runs of the same thing."""


class RunLog:
    """One row for each step, appended and synced.

    Args:
        folder: of the stage.
        tensorboard: write events too.

    Raises:
        UsageError: TensorBoard is asked for and missing.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self._path = folder / "metrics.jsonl"
        self._writer = _event_writer(folder / "tensorboard") if tensorboard else None

    def rows(self) -> list[dict[str, Any]]:
        """Rows so far; a last line that a kill cut is left out."""
        if not self._path.is_file():
            return []
        rows = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def cut(self, step: int) -> list[dict[str, Any]]:
        """Drop rows of ``step`` and later, which will be made again; what is left."""
        rows = [row for row in self.rows() if row["step"] < step]
        if rows or self._path.is_file():
            write_text(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; numbers that are not finite become null."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_strict(row), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._writer is not None:
            for name, value in numbers_of(row).items():
                self._writer.add_scalar(name, value, row["step"])
            self._writer.flush()


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, nested ones as ``funnel/build``; null is NaN."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": number for key, number in numbers_of(value).items()}
        elif value is None:
            found[name] = math.nan
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found


def alarms_of(row: Mapping[str, Any]) -> list[Alarm]:
    """Alarms that a row recorded."""
    return [Alarm(name) for name in row.get("alarms", ())]


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _strict(one) for key, one in value.items()}
    return value


def _event_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "run.tensorboard needs the package tensorboard", "Install it: pip install 'cuda-agent[rl]'."
        ) from None
    return SummaryWriter(str(folder))
