"""The report as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from cuda_agent.evals.metrics_records import EvalRun, Pick, Verdict
from cuda_agent.evals.report.tables import BaselineLine, Section, contract, sections

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
    ("geomean_all_compile", "x all"),
    ("roofline", "of floor"),
)
_SHARES = ("pass", "faster", "surely", "roofline")


def text_report(runs: Sequence[EvalRun]) -> str:
    """One table a run: best of trajectory, with the baselines' lines, the counts and what was spent."""
    return "\n\n".join(_run_text(run) for run in runs) + "\n"


def json_report(runs: Sequence[EvalRun]) -> str:
    """Every number of every row, strict JSON."""
    data = [
        {
            "run": run.name,
            "contract": contract(run),
            "sections": [dataclasses.asdict(section) for section in sections(run)],
        }
        for run in runs
    ]
    return json.dumps({"runs": data}, indent=2, allow_nan=False)


def number(name: str, value: float | None) -> str:
    """A value of a measure with its unit; "-" where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if name.startswith(_SHARES) else f"{value:.2f}x"


def _run_text(run: EvalRun) -> str:
    facts = contract(run)
    head = [f"{run.name}: " + "; ".join(f"{k} {v}" for k, v in facts.items())]
    rows = [["set", "picked", "scored/tasks", *(title for _, title in COLUMNS)]]
    for section in sections(run):
        rows.append(_section_cells(section))
        if section.pick is Pick.BEST and not section.kernel_time:
            rows += [_line_cells(line, section.summary.num_tasks) for line in section.lines]
    overall = next(s for s in sections(run) if s.subset == "overall")
    return "\n".join([*head, *_aligned(rows), *_overall_lines(overall)])


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
        cost = "no price known" if spent.cost_usd is None else f"{spent.cost_usd:.2f} USD"
        unpriced = (
            f" ({spent.num_unpriced} attempts without a price)"
            if spent.cost_usd is not None and spent.num_unpriced
            else ""
        )
        lines.append(
            f"spent: {spent.prompt_tokens} + {spent.completion_tokens} tokens, {spent.turns} turns, "
            f"{spent.judge_calls} judge calls, {spent.seconds:.0f} s, {cost}{unpriced}"
        )
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
