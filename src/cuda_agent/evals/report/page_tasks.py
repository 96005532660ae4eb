"""The page's table of attempts: sortable, filterable, each row opens its details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cuda_agent.evals.metrics_records import UNCOUNTED, Baseline, EvalAttempt, EvalRun, Pick, Verdict
from cuda_agent.evals.metrics_scored import Scored
from cuda_agent.runs.summary import format_us

_HEADS = (
    ("run", True),
    ("task", True),
    ("name", True),
    ("level", False),
    ("sample", False),
    ("verdict", True),
    ("reward", False),
    ("candidate", False),
    ("x eager", False),
    ("x compile", False),
    ("x max-auto", False),
    ("of floor", False),
    ("turns", False),
    ("tokens", False),
    ("time", False),
    ("degenerate", True),
    ("reason", True),
)


@dataclass(frozen=True)
class TaskRow:
    """One attempt as a row.

    Attributes:
        key: id of the element that holds its details.
    """

    key: str
    run: EvalRun
    attempt: EvalAttempt
    scored: Scored


def task_rows(runs: Sequence[EvalRun]) -> list[TaskRow]:
    """Every attempt of every run, in the order of the tasks."""
    rows = []
    for r, run in enumerate(runs):
        tasks = {task.id: (i, task) for i, task in enumerate(run.tasks)}
        known = [a for a in run.attempts if a.id in tasks]
        for n, attempt in enumerate(sorted(known, key=lambda a: (tasks[a.id][0], a.sample))):
            scored = Scored(tasks[attempt.id][1], attempt, attempt.verdict(Pick.BEST), attempt.best)
            rows.append(TaskRow(f"d{r}-{n}", run, attempt, scored))
    return rows


def task_table(rows: Sequence[TaskRow], runs: Sequence[EvalRun]) -> str:
    """Filters and table."""
    heads = "".join(
        f'<th scope="col" data-kind="{"text" if text else "number"}"{" class=text" if text else ""}>'
        f'<button type="button">{escape(title)}</button></th>'
        for title, text in _HEADS
    )
    return (
        _filters(runs)
        + '<div class="scroll tall" tabindex="0" role="region" aria-label="Tasks">'
        + f'<table id="tasks" class="sortable"><thead><tr>{heads}</tr></thead>'
        + f"<tbody>{''.join(map(_row, rows))}</tbody></table></div>"
    )


def _filters(runs: Sequence[EvalRun]) -> str:
    levels = sorted({str(t.level) for run in runs for t in run.tasks if t.level is not None})
    choices = {
        "run": [run.name for run in runs],
        "level": levels,
        "verdict": [str(v) for v in Verdict],
        "degenerate": ["yes", "no", "unknown"],
    }
    boxes = "".join(
        f'<label>{name}<select id="f-{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for name, values in choices.items()
    )
    search = '<label>search<input id="f-text" type="search" placeholder="name, reason, ..."></label>'
    return (
        f'<div class="filters">{search}{boxes}<span id="shown" role="status" aria-live="polite"></span></div>'
    )


def _row(row: TaskRow) -> str:
    task, attempt, scored = row.scored.task, row.attempt, row.scored
    result, verdict = scored.result, scored.verdict
    candidate = result.candidate_us.median if result is not None and result.candidate_us is not None else None
    degenerate = {True: "yes", False: "no", None: "unknown"}[task.is_degenerate]
    tokens = attempt.prompt_tokens + attempt.completion_tokens
    cells = [
        _text(row.run.name),
        f'<td class="text"><button type="button" class="open">{escape(task.id)}</button></td>',
        _text(task.name),
        _number(task.level, str(task.level) if task.level is not None else "-"),
        _number(attempt.sample, str(attempt.sample)),
        f'<td class="text {str(verdict).replace(" ", "-")}">{escape(verdict)}</td>',
        _number(scored.reward, "-" if scored.reward is None else f"{scored.reward:g}"),
        _number(candidate, "-" if candidate is None else format_us(candidate)),
        *(_times(scored.speedup(b)) for b in Baseline),
        _share(scored.roofline_share()),
        _number(attempt.turns, str(attempt.turns)),
        _number(tokens, f"{tokens:,}"),
        _number(attempt.seconds, f"{attempt.seconds:.0f} s"),
        _text(degenerate),
        _text(_reason(scored)),
    ]
    named = task.id if task.name == task.id else f"{task.id} {task.name}"
    title = f"{named}, sample {attempt.sample}, {row.run.name}: {verdict}"
    facts = {
        "run": row.run.name,
        "level": "" if task.level is None else str(task.level),
        "verdict": str(verdict),
        "degenerate": degenerate,
        "detail": row.key,
        "title": title,
    }
    data = " ".join(f'data-{k}="{escape(v)}"' for k, v in facts.items())
    return f"<tr {data}>{''.join(cells)}</tr>"


def _reason(scored: Scored, limit: int = 90) -> str:
    if scored.verdict in UNCOUNTED:
        words = scored.attempt.uncounted_reason()
    elif scored.result is None or scored.correct:
        words = ""
    elif scored.result.violations:
        words = "; ".join(f"{v.kind}: {v.detail}" for v in scored.result.violations)
    else:
        fault = f"{scored.result.fault}: " if scored.result.fault else ""
        words = f"{scored.result.stage}: {fault}{scored.result.detail}"
    words = " ".join(words.split())
    return words if len(words) <= limit else words[: limit - 3] + "..."


def _text(words: str) -> str:
    return f'<td class="text" title="{escape(words)}">{escape(words)}</td>'


def _number(value: float | None, words: str) -> str:
    return f'<td data-v="{"" if value is None else f"{value:.9g}"}">{escape(words)}</td>'


def _times(speedup: float | None) -> str:
    return _number(speedup, "-" if speedup is None else f"{speedup:.2f}x")


def _share(share: float | None) -> str:
    return _number(share, "-" if share is None else f"{100 * share:.0f} %")
