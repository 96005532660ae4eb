"""Admission of many tasks: a row for each, kept as JSON lines, resumed where a run was cut off."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig
from cuda_agent.errors import InfrastructureError, TaskError, UsageError
from cuda_agent.judge.admission import LIMIT_S, Admission, admit
from cuda_agent.tasks.selection import Selectable
from cuda_agent.tasks.shrink import shrink_batch

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What a row depends on beside the task; rows of another setting are not reused.

    Attributes:
        track, precision: contract.
        device: name of the device.
        versions: torch, python, cuda_agent, and cuda and driver where there is one.
        num_draws: own draws.
        shrink_batch: leading sizes were cut to this; ``None``: tasks as shipped.
    """

    track: str
    precision: str
    device: str
    versions: Mapping[str, str]
    num_draws: int
    shrink_batch: int | None = None


@dataclass(frozen=True)
class Row:
    """One task's admission.

    Attributes:
        id, level, problem_id, name: of the task.
        task_hash: of the task as shipped.
        setting: see :class:`Setting`.
        shrunk: (before, after) of each size constant that was cut.
        admission: the outcome.
        seconds: wall time.
    """

    id: str
    level: int | None
    problem_id: int | None
    name: str
    task_hash: str
    setting: Setting
    admission: Admission
    seconds: float
    shrunk: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**dataclasses.asdict(self), "admission": self.admission.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError, KeyError, TypeError: the data are of another form.
        """
        return cls(
            **{
                **data,
                "setting": Setting(**data["setting"]),
                "admission": Admission.from_dict(data["admission"]),
                "shrunk": {name: (was, now) for name, (was, now) in data["shrunk"].items()},
            }
        )


def admit_all(
    entries: Iterable[Selectable],
    config: JudgeConfig,
    *,
    shrink: int | None = None,
    limit_s: float = LIMIT_S,
    out: Path | None = None,
    retry: bool = False,
    say: Say = lambda _: None,
) -> Iterator[Row]:
    """Admit tasks one after another; each row is on disk before it is given.

    Args:
        entries: the tasks.
        config: contract; ``device`` must be resolved (not ``auto``).
        shrink: cut leading sizes to this.
        limit_s: seconds for each task.
        out: JSON lines; tasks that have a row there with the same setting are not run again.
        retry: but those that were not tried to the end are.
        say: receives what is not a row.

    Raises:
        UsageError: ``out`` cannot be written.
        InfrastructureError: after all others, where a task was lost for a reason of ours; it has no row.
    """
    setting = current_setting(config, shrink)
    rows = load_rows(out) if out is not None else []
    known = {(row.id, row.task_hash): row for row in rows if row.setting == setting}
    if retry:
        known = {key: row for key, row in known.items() if not row.admission.reason}
    lost = []
    for entry in entries:
        if (row := known.get((entry.id, entry.task.hash))) is None:
            try:
                row = _admit(entry, config, setting, limit_s)
            except InfrastructureError as error:
                say(f"{entry.id}: {error}")
                lost.append(entry.id)
                continue
            if out is not None:
                _append(out, row)
        yield row
    if lost:
        raise InfrastructureError(f"no outcome for {', '.join(lost)}", "Run the command again.")


def current_setting(config: JudgeConfig, shrink: int | None) -> Setting:
    """The setting of this machine and configuration."""
    import torch

    from cuda_agent.backends.cuda import list_gpus
    from cuda_agent.backends.facts import cpu_identity
    from cuda_agent.judge.devices import choose_place, versions

    place = choose_place(str(config.device), config)
    if place.kind == "cuda":
        name = torch.cuda.get_device_name(config.gpu)
        driver = next((gpu["driver_version"] for gpu in list_gpus()), None)
    else:
        name, driver = cpu_identity().rsplit(" ", 1)[0], None
    return Setting(
        track=str(config.track),
        precision=str(config.precision),
        device=name,
        versions=versions(place, driver),
        num_draws=config.num_draws,
        shrink_batch=shrink,
    )


def load_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; a line that was cut off is skipped. No file: none.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name another --out.") from None
    return [row for line in lines if (row := _parsed(line)) is not None]


def _parsed(line: bytes) -> Row | None:
    try:
        return Row.from_dict(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _admit(entry: Selectable, config: JudgeConfig, setting: Setting, limit_s: float) -> Row:
    start = time.monotonic()
    shrunk: Mapping[str, tuple[int, int]] = {}
    task = entry.task
    try:
        task.check_names()
        if setting.shrink_batch is not None:
            copy = shrink_batch(task, setting.shrink_batch)
            task, shrunk = copy.task, copy.sizes
        admission = admit(task, config, limit_s=limit_s)
    except TaskError as error:
        admission = Admission({}, reason=error.cause)
    return Row(
        entry.id,
        entry.level,
        entry.problem_id,
        entry.task.name,
        entry.task.hash,
        setting,
        admission,
        seconds=round(time.monotonic() - start, 2),
        shrunk=shrunk,
    )


def _append(path: Path, row: Row) -> None:
    """One line at the end, on disk; what a killed run left of a line is closed first."""
    line = json.dumps(row.to_dict(), allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = "\n" + line
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another --out.") from None
