"""Two runs on the tasks that both scored: differences with paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.evals.metrics import MEASURES
from cuda_agent.evals.metrics_budget import Budget, equal_budget
from cuda_agent.evals.metrics_difference import Difference, difference
from cuda_agent.evals.metrics_records import EvalRun, Pick
from cuda_agent.evals.metrics_scored import counted, score
from cuda_agent.evals.report.tables import contract

COMPARED = ("pass", "faster5_eager", "faster5_compile", "geomean_all_eager", "geomean_all_compile", "reward")


@dataclass(frozen=True)
class Comparison:
    """A table of differences.

    Attributes:
        title, note: what is compared over which tasks, and what must be said of it.
        names: of the two sides, in the order of the columns.
    """

    title: str
    note: str
    names: tuple[str, str]
    differences: tuple[Difference, ...]

    def cells(self) -> list[list[str]]:
        """Rows: metric, both sides, change, interval."""
        return [_cells(d) for d in self.differences]


def comparisons(runs: Sequence[EvalRun]) -> list[Comparison]:
    """The first run against each other one; each agent's run against each run of single answers."""
    found = [c for other in runs[1:] if (c := _against(runs[0], other)) is not None]
    for agent in (r for r in runs if r.settings.get("arm") == "agent"):
        for single in (r for r in runs if r.settings.get("arm") == "single_turn"):
            found += [c for budget in Budget if (c := _at_budget(agent, single, budget)) is not None]
    return found


def compare_runs(first: EvalRun, second: EvalRun, *, pick: Pick = Pick.BEST) -> tuple[int, list[Difference]]:
    """Number of common tasks, and every measure of :data:`COMPARED` over them."""
    ours = {g[0].task.id: g for g in counted(score(first, first.tasks, pick=pick))}
    theirs = {g[0].task.id: g for g in counted(score(second, second.tasks, pick=pick))}
    common = [key for key in ours if key in theirs]
    if not common:
        return 0, []
    sides = [[side[key] for key in common] for side in (ours, theirs)]
    return len(common), [difference(n, *(MEASURES[n].values(side) for side in sides)) for n in COMPARED]


def _against(first: EvalRun, second: EvalRun) -> Comparison | None:
    num_tasks, found = compare_runs(first, second)
    if not found:
        return None
    note = f"the {num_tasks} tasks that both scored, drawn together for both{_apart(first, second)}"
    title = f"{second.name} against {first.name}"
    return Comparison(title, note, (first.name, second.name), tuple(found))


def _at_budget(agent: EvalRun, single: EvalRun, budget: Budget) -> Comparison | None:
    found = equal_budget(agent, single, budget)
    if not found.num_tasks:
        return None
    note = (
        f"{found.num_tasks} tasks; the agent's {budget} buy {found.mean_k:.1f} single answers a task, "
        f"on average; expected best over all draws of that many{_apart(agent, single)}"
    )
    if found.num_short:
        note += (
            f"; on {found.num_short} tasks fewer single answers were made than that, which favours the agent"
        )
    title = f"{agent.name} against single answers of {single.name} at equal {budget}"
    return Comparison(title, note, ("best of k", agent.name), found.differences)


def _apart(first: EvalRun, second: EvalRun) -> str:
    ours, theirs = contract(first), contract(second)
    names = [name for name in ours if name != "policy" and ours[name] != theirs[name]]
    return f"; not comparable as they stand: {', '.join(names)} differ" if names else ""


def _cells(d: Difference) -> list[str]:
    spread = "-"
    if d.interval is not None:
        spread = f"{_words(d, d.interval.low, change=True)} to {_words(d, d.interval.high, change=True)}"
    return [d.about, _words(d, d.first), _words(d, d.second), _words(d, d.change, change=True), spread]


def _words(d: Difference, value: float | None, *, change: bool = False) -> str:
    if value is None:
        return "-"
    if d.geometric:
        return f"{value:.3f}x"
    sign = "+" if change else ""
    if d.name == "reward":
        return f"{value:{sign}.2f}"
    return f"{100 * value:{sign}.1f} {'points' if change else '%'}"
