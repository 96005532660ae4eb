"""The report as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from cuda_agent.evals.metrics import Spent
from cuda_agent.evals.metrics_records import EvalRun, Pick, Verdict
from cuda_agent.evals.report.comparison import Comparison, comparisons
from cuda_agent.evals.report.tables import Analysed, BaselineLine, Kept, Section, analyse

COLUMNS = (
    ("pass", "pass"),
    ("faster_eager", ">eager"),
    ("faster5_eager", ">eager 5%"),
    ("faster_compile", ">compile"),
    ("faster5_compile", ">compile 5%"),
    ("surely5_compile", "surely 5%"),
    ("faster_max_autotune", ">max-auto"),
    ("geomean_eager", "x eager"),
    ("geomean_compile", "x compile"),
    ("geomean_all_compile", "x comp. all"),
    ("roofline", "of floor"),
)
_SHARES = ("pass", "faster", "surely", "roofline")


def text_report(runs: Sequence[EvalRun]) -> str:
    """The text of a report that has no page."""
    return text_of([analyse(run) for run in runs])


def text_of(runs: Sequence[Analysed]) -> str:
    """A table a run: best of trajectory with the baselines' lines; counts, intervals, what was spent."""
    parts = [_run_text(run) for run in runs]
    parts += [_comparison_text(found) for found in comparisons([r.run for r in runs])]
    return "\n\n".join(parts) + "\n"


def json_of(runs: Sequence[Analysed]) -> str:
    """Every number of every row, strict JSON."""
    data = [
        {
            "run": found.run.name,
            "contract": found.facts,
            "sections": [dataclasses.asdict(section) for section in found.sections],
        }
        for found in runs
    ]
    compared = [dataclasses.asdict(c) for c in comparisons([r.run for r in runs])]
    return json.dumps({"runs": data, "comparisons": compared}, indent=2, allow_nan=False)


def number(name: str, value: float | None) -> str:
    """A value of a measure with its unit; "-" where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if name.startswith(_SHARES) else f"{value:.2f}x"


def _run_text(found: Analysed) -> str:
    head = f"{found.run.name}: " + "; ".join(f"{k} {v}" for k, v in found.facts.items())
    rows = [["set", "picked", "scored/tasks", *(title for _, title in COLUMNS)]]
    for section in filter(brief, found.sections):
        rows.append(_section_cells(section))
        if section.pick is Pick.BEST and not section.kernel_time:
            rows += [_line_cells(line, section.summary.num_tasks) for line in section.lines]
    return "\n".join([head, *aligned(rows), *_overall_lines(found.overall)])


def brief(section: Section) -> bool:
    """Levels by the best of a trajectory; overall in every way. The page and the JSON have the rest."""
    if section.subset == "overall":
        return True
    return section.pick is Pick.BEST and section.kept is Kept.ALL and not section.kernel_time


def _comparison_text(found: Comparison) -> str:
    rows = [["metric", *found.names, "change", "95 % interval"], *found.cells()]
    return "\n".join([f"{found.title}: {found.note}", *aligned(rows)])


def _section_cells(section: Section) -> list[str]:
    pick = f"{section.pick}, kernel time" if section.kernel_time else str(section.pick)
    found = section.summary
    values = [number(name, found.estimates[name].value) for name, _ in COLUMNS]
    return [f"{section.subset}, {section.kept}", pick, f"{found.num_scored}/{found.num_tasks}", *values]


def _line_cells(line: BaselineLine, num_tasks: int) -> list[str]:
    values = [number(name, getattr(line, name, None)) for name, _ in COLUMNS]
    return [f"  {line.name}", "", f"{line.num_tasks}/{num_tasks}", *values]


def _overall_lines(section: Section) -> list[str]:
    found = section.summary
    lines = ["attempts: " + ", ".join(f"{found.counts[v]} {v}" for v in Verdict)]
    for name, table in (("pass", found.pass_at_k), ("reward", found.reward_at_k)):
        if table:
            lines.append(
                f"{name}@k: "
                + ", ".join(f"{k}: {e.value:.3f}" for k, e in table.items() if e.value is not None)
            )
    for name in ("pass", "faster5_compile", "geomean_compile"):
        estimate = found.estimates[name]
        if estimate.interval is not None:
            low, high = estimate.interval.low, estimate.interval.high
            lines.append(f"{name}: 95 % interval {number(name, low)} to {number(name, high)}")
    if (spent := found.spent) is not None:
        lines.append(
            f"spent: {spent.prompt_tokens} + {spent.completion_tokens} tokens, {spent.turns} turns, "
            f"{spent.judge_calls} judge calls, {spent.seconds:.0f} s, {cost_words(spent)}"
        )
    return lines


def cost_words(spent: Spent) -> str:
    """Money, and how many attempts are not in it."""
    if spent.cost_usd is None:
        return "no price known"
    unpriced = f" ({spent.num_unpriced} attempts without a price)" if spent.num_unpriced else ""
    return f"{spent.cost_usd:,.2f} USD{unpriced}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
