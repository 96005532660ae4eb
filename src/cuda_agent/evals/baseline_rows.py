"""A taskset's baselines for people and for files: measuring, rows, table, summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuda_agent.config import JudgeConfig
from cuda_agent.evals.setting import device_setting
from cuda_agent.judge.baseline_cache import SetCache, precision_of
from cuda_agent.judge.baseline_lines import TaskBaselines
from cuda_agent.judge.baseline_names import Line, Pass
from cuda_agent.runs.summary import format_us

if TYPE_CHECKING:
    from cuda_agent.judge.baseline_set import Measured
    from cuda_agent.tasks.taskset import TaskEntry

Say = Callable[[str], None]
COLUMNS = (
    "task",
    "eager",
    "torch.compile",
    "max-autotune",
    "CUDA graph",
    "settings only",
    "which",
    "floor",
    "compile / floor",
)
MARGIN = 0.05


@dataclass(frozen=True)
class BaselineRow:
    """One task's baselines.

    Attributes:
        id, level, problem_id, name, task_hash: of the task.
        device, versions, precision: what the times stand under.
        baselines: all that is known.
    """

    id: str
    level: int | None
    problem_id: int | None
    name: str
    task_hash: str
    device: str
    versions: Mapping[str, str]
    precision: str
    baselines: TaskBaselines

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the figures under ``baselines``, samples and all under ``measured``."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **data,
            "versions": dict(self.versions),
            "baselines": self.baselines.flat(),
            "measured": self.baselines.to_dict(),
        }


class Baselines:
    """The baselines of a taskset on this machine's device.

    Args:
        entries: the tasks.
        config: device, precision, GPU.

    Raises:
        ToolchainError: no such device.
    """

    def __init__(self, entries: Sequence[TaskEntry], config: JudgeConfig) -> None:
        self._setting = device_setting(config)
        self._config = replace(config, device=self._setting.device)
        self._entries = entries
        self._cache = set_cache(self._config, name=self._setting.name, versions=self._setting.versions)

    @property
    def head(self) -> str:
        """What the times stand under, one line."""
        versions = ", ".join(f"{name} {text}" for name, text in sorted(self._setting.versions.items()))
        return f"{self._setting.name}; precision {precision_of(self._config)}; {versions}"

    def measure(
        self, which: Pass, *, fresh: bool, jobs: int | None, compile_limit_s: float, say: Say
    ) -> Generator[str]:
        """Measure what is missing; a line of progress for each task.

        Raises:
            InfrastructureError: tasks were lost for a reason of ours.
        """
        from cuda_agent.judge.baseline_set import SetBaselines
        from cuda_agent.judge.devices import choose_place

        work = SetBaselines(
            self._config,
            choose_place(str(self._config.device), self._config),
            self._setting.facts,
            versions=self._setting.versions,
            jobs=jobs,
            compile_limit_s=compile_limit_s,
            say=say,
        )
        num_done: dict[tuple[Line, ...], int] = {}
        for done in work.run(self._entries, which, fresh=fresh):
            number = num_done[done.lines] = num_done.get(done.lines, 0) + 1
            yield f"[{number}/{len(self._entries)}] {done.entry.id}: {_progress(done)}"

    def rows(self) -> list[BaselineRow]:
        """What is known of each task now."""
        return [
            BaselineRow(
                id=entry.id,
                level=entry.level,
                problem_id=entry.problem_id,
                name=entry.task.name,
                task_hash=entry.task.hash,
                device=self._setting.name,
                versions=self._setting.versions,
                precision=str(precision_of(self._config)),
                baselines=self._cache.get(entry.task.hash),
            )
            for entry in self._entries
        ]


def set_cache(config: JudgeConfig, *, name: str, versions: Mapping[str, str]) -> SetCache:
    """The cache of a device and contract.

    Args:
        config: ``device`` must be resolved.
        name: of the device.
        versions: of torch, cuda, driver, python.
    """
    import os

    return SetCache(
        config,
        kind=str(config.device),
        device_name=name,
        versions=versions,
        num_threads=len(os.sched_getaffinity(0)),
    )


def _progress(done: Measured) -> str:
    parts = []
    for line in done.lines:
        found = done.baselines.lines.get(line)
        times = found.times if found else None
        text = format_us(times.median) if times else f"failed ({found.why[:120] if found else 'unknown'})"
        wrong = " (not valid at 1e-2)" if found and found.valid is False else ""
        parts.append(f"{line} {text}{wrong}")
    return ("known: " if done.cached else "") + ", ".join(parts)


def table_row(row: BaselineRow) -> tuple[str, ...]:
    """Cells in the order of :data:`COLUMNS`."""
    known = row.baselines
    best, floor = known.settings_only(), known.work.floor_us if known.work else None
    compile_us = known.time_us(Line.COMPILE)
    return (
        row.id,
        *(_cell(known.time_us(x)) for x in (Line.EAGER, Line.COMPILE, Line.MAX_AUTOTUNE, Line.CUDA_GRAPH)),
        _cell(best[0] if best else None),
        str(best[1]) if best else "-",
        _cell(floor),
        f"{compile_us / floor:.2f}" if compile_us and floor else "-",
    )


def _cell(time_us: float | None) -> str:
    return "-" if time_us is None else format_us(time_us)


def summary(rows: Sequence[BaselineRow]) -> list[str]:
    """For each level and for all: how many were measured, and what settings alone buy over torch.compile."""
    levels = sorted({row.level for row in rows if row.level is not None})
    groups = [(f"level {level}", [row for row in rows if row.level == level]) for level in levels]
    if len(groups) != 1:
        groups.append(("all", list(rows)))
    return [f"{name}: {_group_words([row.baselines for row in group])}" for name, group in groups]


def _group_words(known: Sequence[TaskBaselines]) -> str:
    num_eager = sum(b.time_us(Line.EAGER) is not None for b in known)
    compiled = [(b, us) for b in known if (us := b.time_us(Line.COMPILE)) is not None]
    words = f"{len(known)} tasks, eager of {num_eager}, torch.compile of {len(compiled)}"
    if gains := [e / us for b, us in compiled if (e := b.time_us(Line.EAGER)) is not None]:
        words += f", compile over eager {_geomean(gains):.2f}x"
    settings = [us / best[0] for b, us in compiled if (best := b.settings_only()) is not None]
    if settings:
        faster = sum(1.0 - 1.0 / gain > MARGIN for gain in settings)
        words += (
            f"; settings only: more than {MARGIN:.0%} faster than torch.compile on {faster} of "
            f"{len(settings)} ({faster / len(settings):.0%}), geomean {_geomean(settings):.2f}x"
        )
    return words


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))
