"""Scores a run anew without generating: under another reward, from stored verdicts, or judged again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig, Scope, Track
from cuda_agent.errors import UsageError
from cuda_agent.judge.reward import RewardKind, reward_of
from cuda_agent.result import Result
from cuda_agent.rl.scoring import Answer, JudgeScorer, Scorer
from cuda_agent.runs.run_folder import read_json, write_text
from cuda_agent.task import Task
from cuda_agent.tasks.taskset import open_taskset
from cuda_agent.trajectory import read_trajectory
from cuda_agent.workspace.snapshot import freeze


@dataclass(frozen=True)
class Rescored:
    """One episode before and after.

    Attributes:
        folder: of the episode, below the run.
        before: reward of the stored verdict; ``None`` where it has none.
        after: the new one.
    """

    folder: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Asked:
    """What is asked of :func:`rejudge`.

    Attributes:
        reward: what a verdict is worth.
        track: judge again under this contract; ``None`` with ``again`` false uses stored verdicts.
        again: judge again, with this version of the judge.
        before: what verdicts were worth in the run; :func:`rejudge` reads it there.
    """

    reward: RewardKind = RewardKind.MILESTONE
    track: Track | None = None
    again: bool = False
    before: RewardKind = RewardKind.MILESTONE

    @property
    def judges(self) -> bool:
        """Whether candidates are built and timed anew."""
        return self.again or self.track is not None

    @property
    def name(self) -> str:
        """Of the file that is written."""
        return "-".join(
            filter(None, (str(self.reward), str(self.track or ""), "again" if self.again else ""))
        )


def rejudge(root: Path, asked: Asked, *, scorer: Scorer | None = None) -> list[Rescored]:
    """Score every whole episode of a run; ``rejudged/NAME.jsonl`` says what became of each.

    Stored verdicts stay as they are. An episode that left no candidate, and one that was dropped, keeps what
    it had. Episodes that a new judgement has reached are not judged again when this is repeated.

    Args:
        root: a run of ``cuda-agent train``.
        scorer: in place of this machine's judge.

    Raises:
        UsageError: no such run, or its tasks are gone.
    """
    if not (root / "config.json").is_file():
        raise UsageError(f"{root} is no run", "Name a run of cuda-agent train (--out).")
    config = read_json(root / "config.json")
    asked = replace(asked, before=RewardKind(config["judge"]["reward"]))
    path = root / "rejudged" / f"{asked.name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    known = {row["folder"]: row for row in _rows(path)}
    judge = scorer or JudgeScorer(_contract(config, asked))
    tasks = _tasks(config) if asked.judges else {}
    rescored = []
    try:
        for folder in _episodes(root):
            name = str(folder.relative_to(root))
            row = known.get(name) or _scored(folder, name, asked, tasks=tasks, judge=judge)
            known[name] = row
            write_text(path, "".join(json.dumps(one) + "\n" for one in known.values()))
            rescored.append(Rescored(name, row["before"], row["after"]))
    finally:
        judge.close()
    return rescored


def rescored_text(rescored: list[Rescored]) -> str:
    """Means before and after, and how many verdicts moved where."""
    both = [(one.before, one.after) for one in rescored if one.before is not None and one.after is not None]
    if not both:
        return f"{len(rescored)} episodes, none with a reward before and after"
    before, after = (sum(column) / len(both) for column in zip(*both, strict=True))
    moved = Counter((a, b) for a, b in both if a != b)
    lines = [f"{len(both)} of {len(rescored)} episodes: mean reward {before:.3f} -> {after:.3f}"]
    lines += [f"{number:>6}  {a:g} -> {b:g}" for (a, b), number in moved.most_common(12)]
    return "\n".join(lines)


def _scored(
    folder: Path, name: str, asked: Asked, *, tasks: dict[str, Task], judge: Scorer
) -> dict[str, Any]:
    stored = Result.from_dict(read_json(folder / "result.json"))
    result = stored
    if asked.judges and (folder / "candidate").is_dir():
        header = read_trajectory(folder / "trajectory.jsonl").header
        if header.task_hash not in tasks:
            raise UsageError(
                f"the task {header.task_hash} of {name} is not in the taskset", "Put the tasks back."
            )
        result = judge.score(tasks[header.task_hash], Answer("", freeze(folder / "candidate")), Scope.FULL)
    return {
        "folder": name,
        "before": reward_of(stored, asked.before),
        "after": reward_of(result, asked.reward),
        "result": json.loads(result.to_json()) if asked.judges else None,
    }


def _episodes(root: Path) -> Iterator[Path]:
    found = sorted(path.parent for path in root.glob("*/episodes/**/whole"))
    if not found:
        raise UsageError(f"{root} holds no episodes", "Name a run of cuda-agent train (--out).")
    return (folder for folder in found if (folder / "result.json").is_file())


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _contract(config: Any, asked: Asked) -> JudgeConfig:
    table = config["judge"]
    return JudgeConfig(
        device=table["device"],
        track=asked.track or table["track"],
        precision="default" if asked.track is Track.PAPER else table["precision"],  # type: ignore[arg-type]
        gpu=table["gpu"],
    )


def _tasks(config: Any) -> dict[str, Task]:
    table = config["tasks"]
    entries = open_taskset(table["source"], limit=table["limit"] or None).entries
    return {entry.task.hash: entry.task for entry in entries}
