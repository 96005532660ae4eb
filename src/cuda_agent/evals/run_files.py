"""The folder of an evaluation, and how its parts are written and read back.

::

    eval.json           settings: :class:`EvalSettings`
    tasks.jsonl         a line a task: :class:`EvalTask`; a later line of a task takes the place of an earlier
    attempts.jsonl      a line a finished attempt: :class:`EvalAttempt`; likewise
    tasks/ID/           the references: model.py, task.json
    attempts/ID/SAMPLE/ the run folder of one attempt (cuda_agent.runs.run_folder), and last.json
    attempts/ID/SAMPLE.log, SAMPLE.json    what its process said, and the line it left

In folder names the ``/`` of an id is a ``-``. The files only grow; a last line torn by a kill is passed
over. Absent values are ``null``, never 0 or -1.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.evals.jsonl import append_line, read_lines
from cuda_agent.evals.metrics_records import (
    EvalAttempt,
    EvalTask,
    Pick,
    attempt_of,
    latest_attempts,
    task_of,
)
from cuda_agent.runs.run_folder import check_free, read_json, write_text, writing
from cuda_agent.task import Task
from cuda_agent.tasks.targets import load_task_file, save_task


class Arm(StrEnum):
    """How a policy works on a task."""

    AGENT = "agent"
    """The loop: tools, feedback, as many turns as it takes; one attempt is one trajectory."""
    SINGLE_TURN = "single_turn"
    """One answer, no tools, no feedback; one attempt is one answer, judged once."""


@dataclass(frozen=True)
class EvalSettings:
    """What an evaluation is made of; ``eval.json``.

    Attributes:
        taskset, taskset_hash: source as named, and hash of what was selected of it.
        policy: as given to ``--policy``.
        arm: how it works on a task.
        policy_options: keyword arguments of ``make_policy``; never a key.
        samples: attempts for each task.
        track, precision, device, gpu: contract and device.
        device_name: as the driver says.
        versions: torch, cuda, driver, python, cuda_agent.
        max_turns, max_context, time_limit_s: limits of an attempt.
        price_in, price_out: USD for a million prompt and completion tokens, where given.
        started: date and time, UTC.
        command: the command line.
        pool: address of the pool that judges; empty: this machine.
        left_out: tasks of the source that are not in the evaluation: ``{"where", "reason"}``.
    """

    taskset: str
    taskset_hash: str
    policy: str
    arm: Arm = Arm.AGENT
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    track: str = "matched"
    precision: str = "default"
    device: str = "cpu"
    gpu: int = 0
    device_name: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    max_turns: int = 200
    max_context: int = 131_072
    time_limit_s: float | None = None
    price_in: float | None = None
    price_out: float | None = None
    started: str = ""
    command: str = ""
    pool: str = ""
    left_out: tuple[Mapping[str, str], ...] = ()


class EvalFolder:
    """Paths, writers and readers of one evaluation.

    Args:
        root: the folder (``--out``).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings_path = root / "eval.json"
        self.tasks_path = root / "tasks.jsonl"
        self.attempts_path = root / "attempts.jsonl"

    @classmethod
    def create(cls, root: Path, settings: EvalSettings) -> EvalFolder:
        """A new, empty folder with its settings.

        Raises:
            UsageError: it holds something.
            InfrastructureError: it cannot be written.
        """
        check_free(root)
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
        folder = cls(root.resolve())
        folder.save_settings(settings)
        return folder

    @classmethod
    def open(cls, root: Path) -> EvalFolder:
        """An existing evaluation.

        Raises:
            UsageError: it is none.
        """
        folder = cls(root.resolve())
        if not folder.settings_path.is_file():
            raise UsageError(f"{root} is no run of cuda-agent eval", "Name the folder it wrote (--out).")
        return folder

    def save_settings(self, settings: EvalSettings) -> None:
        """Write ``eval.json``."""
        write_text(self.settings_path, json.dumps(dataclasses.asdict(settings), indent=2) + "\n")

    def settings(self) -> EvalSettings:
        """Read ``eval.json``.

        Raises:
            UsageError: not there, or damaged.
        """
        data = read_json(self.settings_path)
        try:
            names = {f.name for f in dataclasses.fields(EvalSettings)}
            values = {key: value for key, value in data.items() if key in names}
            values["arm"] = Arm(values.get("arm", Arm.AGENT))
            values["left_out"] = tuple(values.get("left_out", ()))
            return EvalSettings(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{self.settings_path} does not fit: {error}", "Start a new evaluation."
            ) from None

    def add_task(self, task: EvalTask) -> None:
        """Append a task's line."""
        append_line(self.tasks_path, dataclasses.asdict(task))

    def tasks(self) -> tuple[EvalTask, ...]:
        """Every task, in the order first written, as its last line says."""
        tasks = map(task_of, read_lines(self.tasks_path))
        return tuple({task.id: task for task in tasks}.values())

    def save_task(self, key: str, task: Task) -> None:
        """Write a task's reference."""
        with writing(self.task_folder(key)):
            save_task(task, self.task_folder(key))

    def load_task(self, key: str) -> Task:
        """Read a task's reference.

        Raises:
            UsageError, TaskError: it is not there, or damaged.
        """
        return load_task_file(self.task_folder(key) / "model.py")

    def add_attempt(self, attempt: EvalAttempt) -> None:
        """Append a finished attempt's line."""
        append_line(self.attempts_path, attempt_line(attempt))

    def attempts(self) -> tuple[EvalAttempt, ...]:
        """Every finished attempt, in the order first finished, as its last line says."""
        return latest_attempts([attempt_of(line) for line in read_lines(self.attempts_path)])

    def task_folder(self, key: str) -> Path:
        """Where a task's reference lies."""
        return self.root / "tasks" / folder_name(key)

    def attempt_folder(self, key: str, sample: int) -> Path:
        """The run folder of an attempt."""
        return self.root / "attempts" / folder_name(key) / str(sample)


def folder_name(key: str) -> str:
    """A task's id as the name of a folder."""
    return re.sub(r"[^\w.+=,-]", "-", key).strip(".") or "task"


def attempt_line(attempt: EvalAttempt) -> dict[str, Any]:
    """An attempt as plain JSON types; non-finite numbers of a verdict become ``None``."""
    line = {name: getattr(attempt, name) for name in attempt.__dataclass_fields__}
    for pick in Pick:
        result = attempt.result(pick)
        line[pick] = None if result is None else json.loads(result.to_json())
    return {**line, "ending": attempt.ending or None, "judged": dict(attempt.judged)}
