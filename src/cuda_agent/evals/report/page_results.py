"""The page's tables of results: each run's rows, comparisons, the published table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cuda_agent.evals.metrics import MEASURES, Estimate
from cuda_agent.evals.metrics_records import Pick, Verdict
from cuda_agent.evals.report.comparison import Comparison
from cuda_agent.evals.report.published import PublishedRow, published
from cuda_agent.evals.report.tables import Analysed, BaselineLine, Section
from cuda_agent.evals.report.text import COLUMNS, brief, cost_words, number


def results(found: Analysed) -> str:
    """One run: its rows with the baselines' lines, its counts and costs."""
    facts = found.facts
    under = (
        f"Track {facts['track']}, precision {facts['precision']}, on {facts['device']}; {facts['versions']}."
    )
    rest = [s for s in found.sections if not brief(s)]
    return (
        f"<h2>Results: {escape(found.run.name)}</h2>"
        f'<p class="note">{escape(under)} Italic lines: what a baseline reaches on the same tasks with no '
        "kernel of the policy's.</p>"
        + _sections_table([s for s in found.sections if brief(s)], f"Results of {found.run.name}")
        + (f"<details><summary>{len(rest)} more rows by level</summary>" if rest else "")
        + (_sections_table(rest, f"More results of {found.run.name}") + "</details>" if rest else "")
        + _counts(found.overall)
    )


def _sections_table(sections: Sequence[Section], label: str) -> str:
    rows, last = [], None
    for section in sections:
        rows.append(_section_row(section))
        # Once for each set of tasks: the lines know of no pick.
        if last != (section.subset, section.kept):
            rows += [_line_row(line, section.summary.num_tasks) for line in section.lines]
        last = (section.subset, section.kept)
    heads = [("set", True), ("picked", True), ("scored / tasks", False), *((t, False) for _, t in COLUMNS)]
    return _table(heads, rows, label)


def comparison(found: Comparison) -> str:
    """A table of differences."""
    heads = [("metric", True), *((n, False) for n in (*found.names, "change", "95 % interval"))]
    rows = [f"<tr>{_cell(c[0], text=True)}{''.join(map(_cell, c[1:]))}</tr>" for c in found.cells()]
    note = found.note[:1].upper() + found.note[1:]
    title = f"<h2>{escape(found.title)}</h2>"
    return title + f'<p class="note">{escape(note)}.</p>' + _table(heads, rows, found.title)


def published_table(runs: Sequence[Analysed]) -> str:
    """The paper's table, with our overall rows below it, apart."""
    table = published()
    heads = [("set", True), ("model", True), ("track", True), ("device", True), ("pass", False)]
    heads += [(title, False) for title in (">eager", ">compile", "x eager", "x compile")]
    theirs = [_published_row(row, table.track) for row in table.rows]
    ours = [row for found in runs for row in _our_rows(found)]
    note = f"{table.source}. Track {table.track}; device: {table.device}. {table.note}."
    return (
        "<h2>Beside the published table</h2>"
        f'<p class="note">{escape(note)}</p>'
        '<p class="note">Rows of another track or device are not comparable with each other.</p>'
        + _table(heads, [*ours, *theirs], "The published table and ours")
    )


def _published_row(row: PublishedRow, track: str) -> str:
    shares = [f"{100 * v:.1f} %" for v in (row.pass_rate, row.faster_eager, row.faster_compile)]
    means = [f"{v:.2f}x" for v in (row.geomean_eager, row.geomean_compile)]
    words = [row.subset.replace("level", "level "), f"{row.model} (published)", track, "not named"]
    return f"<tr>{''.join(_cell(w, text=True) for w in words)}{''.join(map(_cell, [*shares, *means]))}</tr>"


def _our_rows(found: Analysed) -> list[str]:
    names = ("pass", "faster_eager", "faster_compile", "geomean_eager", "geomean_compile")
    rows = []
    for section in found.sections:
        if section.pick is not Pick.BEST or section.kept is not found.overall.kept or section.kernel_time:
            continue
        words = [section.subset, f"{found.run.name} (ours)", found.facts["track"], found.facts["device"]]
        values = [number(n, section.summary.estimates[n].value) for n in names]
        cells = "".join([*(_cell(w, text=True) for w in words), *map(_cell, values)])
        rows.append(f'<tr class="ours">{cells}</tr>')
    return rows


def _table(heads: Sequence[tuple[str, bool]], rows: Sequence[str], label: str) -> str:
    """A table in a box that scrolls; ``heads`` are (title, is it text), ``rows`` ready markup."""
    cells = "".join(_head_cell(title, text=text) for title, text in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head_cell(title: str, *, text: bool) -> str:
    """A column's head; one of a measure says on hover what it is."""
    about = next((MEASURES[name].about for name, head in COLUMNS if head == title), None)
    hover = f' title="{escape(about)}"' if about else ""
    return f'<th scope="col"{" class=text" if text else ""}{hover}>{escape(title)}</th>'


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
        spread = (
            f'<small class="interval">{escape(low.rstrip(" %x"))} to {escape(high.rstrip(" %x"))}</small>'
        )
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
        facts["cost"] = cost_words(spent)
    terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return (
        f'<div class="cards"><section class="card"><h3>Counts and cost</h3><dl>{terms}</dl></section></div>'
    )
