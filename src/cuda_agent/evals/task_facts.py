"""What is known of an evaluation's tasks beside the attempts: baselines, degenerate flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.config import Device, JudgeConfig, Precision, Track, cache_dir
from cuda_agent.errors import InfrastructureError
from cuda_agent.evals.baseline_rows import set_cache
from cuda_agent.evals.run_files import EvalFolder, EvalSettings
from cuda_agent.task import Task

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Entry:
    id: str
    task: Task
    level: int | None
    problem_id: int | None


def judge_config(settings: EvalSettings) -> JudgeConfig:
    """The contract of an evaluation."""
    return JudgeConfig(
        device=Device(settings.device),
        track=Track(settings.track),
        precision=Precision(settings.precision),
        gpu=settings.gpu,
    )


def add_baselines(folder: EvalFolder) -> None:
    """Fill in the baselines that ``cuda-agent baseline`` has measured on this device, where they are new."""
    settings = folder.settings()
    cache = set_cache(judge_config(settings), name=settings.device_name or "", versions=settings.versions)
    for task in folder.tasks():
        known = cache.get(task.task_hash or "")
        if known.lines and (flat := known.flat()) != task.baselines:
            folder.add_task(replace(task, baselines=flat))


def add_flags(folder: EvalFolder, *, say: Say) -> None:
    """Try trivial answers on the tasks without flags; rows of earlier evaluations are used again."""
    tasks = [task for task in folder.tasks() if task.degenerate is None]
    if not tasks:
        return
    from cuda_agent.judge.admission_set import admit_all

    say(f"trying trivial answers on {len(tasks)} tasks (--no-admission leaves them out)")
    entries = [_Entry(t.id, folder.load_task(t.id), t.level, t.problem_id) for t in tasks]
    by_id = {task.id: task for task in tasks}
    config = judge_config(folder.settings())
    try:
        for row in admit_all(entries, config, out=_rows_path(config), say=say):
            passes = {str(answer): value for answer, value in row.admission.passes.items()}
            folder.add_task(replace(by_id[row.id], degenerate=passes))
    except InfrastructureError as error:
        say(str(error))


def _rows_path(config: JudgeConfig) -> Path:
    return cache_dir() / "admission" / f"{config.device}-{config.track}-{config.precision}.jsonl"
