"""The report as one HTML page that needs no network.

Whatever comes from candidates, models or file names is escaped here or put in as text by the page's
script; a policy in the page's head forbids every other script and every connection.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from cuda_agent.evals.metrics import Estimate
from cuda_agent.evals.metrics_records import EvalRun, Pick, Verdict
from cuda_agent.evals.report.comparison import Difference, compare_runs
from cuda_agent.evals.report.details import details, packed
from cuda_agent.evals.report.page_plots import plots
from cuda_agent.evals.report.page_tasks import task_rows, task_table
from cuda_agent.evals.report.published import published
from cuda_agent.evals.report.tables import BaselineLine, Section, contract, sections
from cuda_agent.evals.report.text import COLUMNS, number


def html_report(runs: Mapping[Path, EvalRun]) -> str:
    """The whole page.

    Args:
        runs: folders and what was read of them, in the order to show.
    """
    every = list(runs.values())
    rows = task_rows(every)
    blobs = [
        f'<script type="text/plain" id="{row.key}">{packed(details(root, row.run, row.attempt))}</script>'
        for row in rows
        for root, run in runs.items()
        if run is row.run
    ]
    script, style = _asset("report.js"), _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape('cuda-agent: ' + ', '.join(r.name for r in every))}</title>",
            f"<style>{style}</style></head><body>",
            _header(every),
            "<main>",
            *(_results(run) for run in every),
            *(_comparison(every[0], other) for other in every[1:]),
            _published(every),
            "<h2>Plots</h2>",
            plots(every),
            "<h2>Tasks</h2>",
            task_table(rows, every),
            "</main>",
            _FOOTER,
            _DIALOG,
            *blobs,
            f"<script>{script}</script>",
            "</body></html>",
            "",
        ]
    )


_DIALOG = (
    '<dialog id="detail" aria-labelledby="detail-title"><div class="bar-top"><h2 id="detail-title"></h2>'
    '<button class="plain" id="close" type="button">Close</button></div><div class="body"></div></dialog>'
)
_FOOTER = (
    "<footer>Intervals are 95 %, by bootstrap over tasks and the samples in them. Attempts that our own side "
    "lost are in no rate. Definitions: docs/evaluation.md.</footer>"
)


def _asset(name: str) -> str:
    return resources.files("cuda_agent.evals.report").joinpath("page", name).read_text("utf-8")


def _header(runs: Sequence[EvalRun]) -> str:
    cards = []
    for run in runs:
        facts = contract(run) | {
            k: str(run.settings[k])
            for k in ("taskset", "samples", "started", "command")
            if run.settings.get(k)
        }
        terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
        cards.append(f'<section class="card"><h3>{escape(run.name)}</h3><dl>{terms}</dl></section>')
    return f'<header><h1>Evaluation</h1><div class="cards">{"".join(cards)}</div></header>'


def _results(run: EvalRun) -> str:
    found = sections(run)
    facts = contract(run)
    under = (
        f"Track {facts['track']}, precision {facts['precision']}, on {facts['device']}; {facts['versions']}."
    )
    rows = []
    for section in found:
        rows.append(_section_row(section))
        if section.pick is Pick.BEST and not section.kernel_time:
            rows += [_line_row(line, section.summary.num_tasks) for line in section.lines]
    heads = [("set", True), ("picked", True), ("scored / tasks", False), *((t, False) for _, t in COLUMNS)]
    overall = next(s for s in found if s.subset == "overall")
    return (
        f"<h2>Results: {escape(run.name)}</h2>"
        f'<p class="note">{escape(under)} Italic lines: what a baseline reaches on the same tasks with no '
        "kernel of the policy's.</p>" + plain_table(heads, rows, f"Results of {run.name}") + _counts(overall)
    )


def plain_table(heads: Sequence[tuple[str, bool]], rows: Sequence[str], label: str) -> str:
    """A table in a box that scrolls; ``heads`` are (title, is it text), ``rows`` ready markup."""
    cells = "".join(f'<th scope="col"{" class=text" if text else ""}>{escape(t)}</th>' for t, text in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _section_row(section: Section) -> str:
    pick = f"{section.pick}, kernel time" if section.kernel_time else str(section.pick)
    found = section.summary
    cells = [_cell(f"{section.subset}, {section.kept}", text=True), _cell(pick, text=True)]
    cells.append(_cell(f"{found.num_scored} / {found.num_tasks}"))
    cells += [_estimate_cell(name, found.estimates[name]) for name, _ in COLUMNS]
    head = ' class="head"' if section.pick is Pick.BEST and not section.kernel_time else ""
    return f"<tr{head}>{''.join(cells)}</tr>"


def _line_row(line: BaselineLine, num_tasks: int) -> str:
    cells = [_cell(line.name, text=True), _cell("", text=True), _cell(f"{line.num_tasks} / {num_tasks}")]
    cells += [_cell(number(name, getattr(line, name, None))) for name, _ in COLUMNS]
    return f'<tr class="baseline">{"".join(cells)}</tr>'


def _cell(words: str, *, text: bool = False) -> str:
    return f"<td{' class=text' if text else ''}>{escape(words)}</td>"


def _estimate_cell(name: str, estimate: Estimate) -> str:
    spread = ""
    if estimate.value is not None and estimate.interval is not None:
        low, high = number(name, estimate.interval.low), number(name, estimate.interval.high)
        spread = f'<small class="interval">{escape(low.rstrip(" %x"))} to {escape(high)}</small>'
    return f"<td>{escape(number(name, estimate.value))}{spread}</td>"


def _counts(section: Section) -> str:
    found, spent = section.summary, section.summary.spent
    facts = {"attempts": ", ".join(f"{found.counts[v]} {v}" for v in Verdict)}
    for name, table in (("pass@k", found.pass_at_k), ("reward@k", found.reward_at_k)):
        if known := {k: e.value for k, e in table.items() if e.value is not None}:
            facts[name] = ", ".join(f"k = {k}: {v:.3f}" for k, v in known.items())
    if spent is not None:
        facts["tokens"] = f"{spent.prompt_tokens:,} in, {spent.completion_tokens:,} out"
        facts["turns, judge calls"] = f"{spent.turns:,}, {spent.judge_calls:,}"
        facts["time"] = f"{spent.seconds / 3600:.2f} h, summed over attempts"
        cost = "no price known" if spent.cost_usd is None else f"{spent.cost_usd:,.2f} USD"
        facts["cost"] = cost + (
            f" ({spent.num_unpriced} attempts without a price)" if spent.num_unpriced else ""
        )
    terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return (
        f'<div class="cards"><section class="card"><h3>Counts and cost</h3><dl>{terms}</dl></section></div>'
    )


def _comparison(first: EvalRun, second: EvalRun) -> str:
    found = compare_runs(first, second)
    title = f"<h2>{escape(second.name)} against {escape(first.name)}</h2>"
    if not found:
        return title + '<p class="note">They have no task in common.</p>'
    apart = [k for k, v in contract(first).items() if contract(second)[k] != v and k != "policy"]
    note = f"Over the {found[0].num_tasks} tasks that both scored; tasks are drawn together for both."
    if apart:
        note += f" Not comparable as they stand: they differ in {', '.join(apart)}."
    heads = [
        ("metric", True),
        (first.name, False),
        (second.name, False),
        ("change", False),
        ("95 % interval", False),
    ]
    rows = [_difference_row(d) for d in found]
    return title + f'<p class="note">{escape(note)}</p>' + plain_table(heads, rows, "Comparison")


def _difference_row(d: Difference) -> str:
    def show(value: float | None, *, change: bool = False) -> str:
        if value is None:
            return "-"
        if d.geometric:
            return f"{value:.3f}x"
        scale, unit = (1.0, "") if d.name == "reward" else (100.0, " pt" if change else " %")
        return f"{scale * value:{'+' if change else ''}.{2 if d.name == 'reward' else 1}f}{unit}"

    spread = "-"
    if d.interval is not None:
        spread = f"{show(d.interval.low, change=True)} to {show(d.interval.high, change=True)}"
    cells = [show(d.first), show(d.second), show(d.change, change=True), spread]
    return f"<tr>{_cell(d.about, text=True)}{''.join(map(_cell, cells))}</tr>"


def _published(runs: Sequence[EvalRun]) -> str:
    table = published()
    ours = "; ".join(f"{r.name}: track {contract(r)['track']}, {contract(r)['device']}" for r in runs)
    heads = [("set", True), ("model", True), ("pass", False), (">eager", False), (">compile", False)]
    heads += [("x eager", False), ("x compile", False)]
    rows = [
        f"<tr>{_cell(r.subset.replace('level', 'level '), text=True)}{_cell(r.model, text=True)}"
        + "".join(_cell(f"{100 * v:.1f} %") for v in (r.pass_rate, r.faster_eager, r.faster_compile))
        + "".join(_cell(f"{v:.2f}x") for v in (r.geomean_eager, r.geomean_compile))
        + "</tr>"
        for r in table.rows
    ]
    note = f"{table.source}. Track {table.track}; device: {table.device}. {table.note}."
    return (
        "<h2>The published table</h2>"
        f'<p class="note">{escape(note)} Ours is measured elsewhere: {escape(ours)}.</p>'
        f"<details><summary>Show {len(table.rows)} rows</summary>"
        + plain_table(heads, rows, "The published table")
        + "</details>"
    )
