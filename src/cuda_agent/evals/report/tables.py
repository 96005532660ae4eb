"""The numbers of a report: one row a set of tasks, with the lines that must stand beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cuda_agent.evals.metrics import MARGIN, Summary, summarise
from cuda_agent.evals.metrics_bootstrap import mean_over_tasks
from cuda_agent.evals.metrics_estimators import is_faster
from cuda_agent.evals.metrics_records import EvalRun, EvalTask, Pick
from cuda_agent.evals.metrics_scored import score

BASELINES = {"settings_only": "settings only", "max_autotune": "max-autotune"}
"""Lines beside every row, by their key in a task's baselines."""


class Kept(StrEnum):
    """Whether degenerate tasks (a trivial answer passes as correct) are in the set."""

    ALL = "all tasks"
    SOUND = "without degenerate"


@dataclass(frozen=True)
class BaselineLine:
    """What a baseline reaches on the same tasks without any kernel of the policy's.

    Attributes:
        name: of :data:`BASELINES`, and whether it was measured at all.
        num_tasks: tasks on which it was measured.
        faster_eager, faster_compile, faster5_eager, faster5_compile: shares of all tasks of the set.
        geomean_eager, geomean_compile: over tasks on which it was measured.
    """

    name: str
    num_tasks: int
    faster_eager: float | None
    faster5_eager: float | None
    faster_compile: float | None
    faster5_compile: float | None
    geomean_eager: float | None
    geomean_compile: float | None


@dataclass(frozen=True)
class Section:
    """One row of the report's table.

    Attributes:
        run, subset, kept, pick: what it is about; subset is "overall" or "level N".
        kernel_time: speed-ups by summed kernel time.
    """

    run: str
    subset: str
    kept: Kept
    pick: Pick
    kernel_time: bool
    summary: Summary
    lines: tuple[BaselineLine, ...]


@dataclass(frozen=True)
class Analysed:
    """A run with every number that a report shows of it.

    Attributes:
        facts: :func:`contract`.
    """

    run: EvalRun
    facts: Mapping[str, str]
    sections: Sequence[Section]

    @property
    def overall(self) -> Section:
        """All tasks, best of trajectory."""
        return self.sections[0]


def analyse(run: EvalRun) -> Analysed:
    """Work out everything once."""
    return Analysed(run, contract(run), sections(run))


def contract(run: EvalRun) -> dict[str, str]:
    """Policy, track, precision, device, versions: what every number of a run stands under.

    Where verdicts name another device or contract than the settings, all are named.
    """
    settings, timed = run.settings, [a.best for a in run.attempts if a.best and a.best.device]
    versions = [settings.get("versions")] if settings.get("versions") else [r.versions for r in timed]
    named = [", ".join(f"{k} {v}" for k, v in sorted(dict(found or {}).items())) for found in versions]
    return {
        "policy": _named([settings.get("policy")]) + _arm(settings),
        "track": _named([settings.get("track"), *(r.track for r in timed)]),
        "precision": _named([settings.get("precision"), *(r.precision for r in timed)]),
        "device": _named([settings.get("device_name"), *(r.device for r in timed)]),
        "versions": _named(named),
    }


def _arm(settings: Mapping[str, Any]) -> str:
    arm = str(settings.get("arm") or "")
    return f" ({arm.replace('_', ' ')})" if arm else ""


def _named(values: Sequence[object]) -> str:
    """Each value once, in order."""
    return "; ".join(dict.fromkeys(str(v) for v in values if v)) or "unknown"


def sections(run: EvalRun) -> list[Section]:
    """Every row of a run: overall and by level, with and without degenerate tasks, best and last.

    Overall over all tasks, best of trajectory, is the first. Track ``paper`` also has rows by its own time.
    """
    paper = run.settings.get("track") == "paper"
    rows = []
    for subset, tasks in subsets(run.tasks).items():
        for kept, chosen in _kept(tasks).items():
            lines = tuple(baseline_line(name, chosen) for name in BASELINES)
            for pick, kernel in [(p, k) for k in ((False, True) if paper else (False,)) for p in Pick]:
                summary = summarise(score(run, chosen, pick=pick, kernel_time=kernel))
                rows.append(Section(run.name, subset, kept, pick, kernel, summary, lines))
    return rows


def subsets(tasks: Sequence[EvalTask]) -> dict[str, list[EvalTask]]:
    """All tasks, then those of each level where there is more than one."""
    levels = sorted({t.level for t in tasks if t.level is not None})
    found = {"overall": list(tasks)}
    if len(levels) > 1:
        found |= {f"level {level}": [t for t in tasks if t.level == level] for level in levels}
    return found


def _kept(tasks: Sequence[EvalTask]) -> dict[Kept, list[EvalTask]]:
    found = {Kept.ALL: list(tasks)}
    if any(t.is_degenerate is not None for t in tasks):
        found[Kept.SOUND] = [t for t in tasks if not t.is_degenerate]
    return found


def baseline_line(name: str, tasks: Sequence[EvalTask]) -> BaselineLine:
    """The row of a baseline: ``name`` is its key in the tasks' baselines, without ``_us``."""
    num_tasks = sum(t.baseline_us(name) is not None for t in tasks)
    ratios = {b: _ratios(tasks, b, name) for b in ("eager", "compile")}
    return BaselineLine(
        name=BASELINES[name] if num_tasks else f"{BASELINES[name]}: not measured",
        num_tasks=num_tasks,
        faster_eager=_share(ratios["eager"], 0.0),
        faster5_eager=_share(ratios["eager"], MARGIN),
        faster_compile=_share(ratios["compile"], 0.0),
        faster5_compile=_share(ratios["compile"], MARGIN),
        geomean_eager=_geomean(ratios["eager"]),
        geomean_compile=_geomean(ratios["compile"]),
    )


def _ratios(tasks: Sequence[EvalTask], top: str, bottom: str) -> list[float | None]:
    pairs = [(t.baseline_us(top), t.baseline_us(bottom)) for t in tasks]
    return [a / b if a is not None and b is not None else None for a, b in pairs]


def _share(ratios: Sequence[float | None], margin: float) -> float | None:
    if not any(r is not None for r in ratios):
        return None
    return sum(r is not None and is_faster(r, margin) for r in ratios) / len(ratios)


def _geomean(ratios: Sequence[float | None]) -> float | None:
    mean = mean_over_tasks([[None if r is None else math.log(r)] for r in ratios])
    return None if mean is None else math.exp(mean)
