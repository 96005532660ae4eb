"""The folder of an evaluation, and how its parts are written and read back.

::

    eval.json           settings: :class:`EvalSettings`
    tasks.jsonl         a line a task: :class:`TaskLine`; a later line of a task takes the place of an earlier
    attempts.jsonl      a line a finished attempt: :class:`AttemptLine`; likewise
    tasks/ID/           the references: model.py, task.json
    attempts/ID/SAMPLE/ the run folder of one attempt (cuda_agent.runs.run_folder), and log.txt

In folder names the ``/`` of an id is a ``-``. The files only grow; a last line torn by a kill is passed
over. Absent values are ``null``, never 0 or -1.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.evals.jsonl import append_line, read_lines
from cuda_agent.result import Result
from cuda_agent.runs.run_folder import check_free, read_json, write_text, writing
from cuda_agent.task import Task
from cuda_agent.tasks.targets import load_task_file, save_task
from cuda_agent.trajectory import Ending


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
    left_out: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class TaskLine:
    """One task of an evaluation.

    Attributes:
        id, level, problem_id, name: as in the taskset.
        task_hash: of the reference.
        ops: operator names, where known.
        degenerate: whether a trivial answer passes all checks, by name (zeros, mean, stale, other_weights,
            identity); a value is ``None`` where it was not decided; ``None``: not tried.
        baselines: microseconds (``eager_us``, ``compile_us``, ``max_autotune_us``, ``cuda_graph_us``,
            ``settings_only_us``, ``floor_us``), ``settings_only_name`` and what else ``cuda-agent baseline``
            found; ``None``: not measured.
    """

    id: str
    level: int | None
    problem_id: int | None
    name: str
    task_hash: str
    ops: tuple[str, ...] = ()
    degenerate: Mapping[str, bool | None] | None = None
    baselines: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AttemptLine:
    """One finished attempt at one task.

    Attributes:
        id, sample: which task, which attempt at it (from 0).
        ending: of the episode; ``None`` where there was none.
        best: verdict on the fastest verified version, measured anew in a fresh process (the final state
            where no version was verified); ``None``: none was reached.
        last: verdict on the final state of the workspace; ``None``: none was reached.
        judge_calls: judgements in all; ``judged`` has them by scope (build, verify, profile, full).
        turns, prompt_tokens, completion_tokens: of the episode; tokens are 0 where the policy tells none.
        seconds: wall time, of earlier processes too.
        cost_usd: from the prices given, or as the endpoint said; ``None`` where neither is known.
        infrastructure: why our side failed (a dead endpoint, a lost process), if it did: the attempt counts
            for nothing and is made again on resume.
        task_error: why the reference cannot be judged here, if it cannot.
        detail: a line on the ending.
        words: the policy's last words, cut.
    """

    id: str
    sample: int
    ending: Ending | None
    best: Result | None = None
    last: Result | None = None
    judge_calls: int = 0
    judged: Mapping[str, int] = field(default_factory=dict)
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost_usd: float | None = None
    infrastructure: str | None = None
    task_error: str | None = None
    detail: str = ""
    words: str = ""

    @property
    def wrote_nothing(self) -> bool:
        """The policy left no candidate: it refused, or gave up."""
        return self.best is not None and self.best.candidate_hash is None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; non-finite numbers of a verdict become ``None``."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["judged"] = dict(self.judged)
        for name in ("best", "last"):
            result: Result | None = data[name]
            data[name] = None if result is None else result.to_plain()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttemptLine:
        """Inverse of :meth:`to_dict`; keys of later versions are passed over.

        Raises:
            ValueError, KeyError, TypeError: the data are of another form.
        """
        values = _known(cls, data)
        values["ending"] = Ending(values["ending"]) if values.get("ending") else None
        for name in ("best", "last"):
            values[name] = Result.from_dict(values[name]) if values.get(name) else None
        return cls(**values)


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
        import json

        write_text(self.settings_path, json.dumps(dataclasses.asdict(settings), indent=2) + "\n")

    def settings(self) -> EvalSettings:
        """Read ``eval.json``.

        Raises:
            UsageError: not there, or damaged.
        """
        data = read_json(self.settings_path)
        try:
            values = _known(EvalSettings, data)
            values["arm"] = Arm(values.get("arm", Arm.AGENT))
            values["left_out"] = tuple(values.get("left_out", ()))
            return EvalSettings(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{self.settings_path} does not fit: {error}", "Start a new evaluation.") from None

    def add_task(self, line: TaskLine) -> None:
        """Append a task's line."""
        append_line(self.tasks_path, dataclasses.asdict(line))

    def tasks(self) -> tuple[TaskLine, ...]:
        """Every task, in the order first written, as its last line says."""
        found: dict[str, TaskLine] = {}
        for record in read_lines(self.tasks_path):
            values = _known(TaskLine, record)
            if "id" in values:
                found[values["id"]] = TaskLine(**{**values, "ops": tuple(values.get("ops", ()))})
        return tuple(found.values())

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

    def add_attempt(self, line: AttemptLine) -> None:
        """Append a finished attempt's line."""
        append_line(self.attempts_path, line.to_dict())

    def attempts(self) -> tuple[AttemptLine, ...]:
        """Every attempt, in the order first finished, as its last line says; damaged lines are passed over."""
        found: dict[tuple[str, int], AttemptLine] = {}
        for record in read_lines(self.attempts_path):
            try:
                line = AttemptLine.from_dict(record)
            except (ValueError, KeyError, TypeError):
                continue
            found[line.id, line.sample] = line
        return tuple(found.values())

    def task_folder(self, key: str) -> Path:
        """Where a task's reference lies."""
        return self.root / "tasks" / folder_name(key)

    def attempt_folder(self, key: str, sample: int) -> Path:
        """The run folder of an attempt."""
        return self.root / "attempts" / folder_name(key) / str(sample)


def folder_name(key: str) -> str:
    """A task's id as the name of a folder."""
    return re.sub(r"[^\w.+=,-]", "-", key).strip(".") or "task"


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(kind)}
    return {key: value for key, value in data.items() if key in names}
