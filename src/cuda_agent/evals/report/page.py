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

from cuda_agent.evals.report.comparison import comparisons
from cuda_agent.evals.report.details import details, packed
from cuda_agent.evals.report.page_plots import plots
from cuda_agent.evals.report.page_results import comparison, published_table, results
from cuda_agent.evals.report.page_tasks import task_rows, task_table
from cuda_agent.evals.report.tables import Analysed

_DIALOG = (
    '<dialog id="detail" aria-labelledby="detail-title"><div class="bar-top"><h2 id="detail-title"></h2>'
    '<button class="plain" id="close" type="button">Close</button></div><div class="body"></div></dialog>'
)
_FOOTER = (
    "<footer>Intervals are 95 %, by bootstrap over tasks and the samples in them. Attempts that our own side "
    "lost, and tasks that cannot be judged, are in no rate. Definitions: docs/evaluation.md.</footer>"
)


def html_report(runs: Mapping[Path, Analysed]) -> str:
    """The whole page.

    Args:
        runs: folders and what was worked out of them, in the order to show.
    """
    every = list(runs.values())
    records = [found.run for found in every]
    roots = {id(found.run): root for root, found in runs.items()}
    rows = task_rows(records)
    contents = [packed(details(roots[id(row.run)], row.run, row.attempt)) for row in rows]
    blobs = [
        f'<script type="text/plain" id="{row.key}">{content}</script>'
        for row, content in zip(rows, contents, strict=True)
    ]
    script, style = _asset("report.js"), _asset("report.css")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape('cuda-agent: ' + ', '.join(r.name for r in records))}</title>",
            f"<style>{style}</style></head><body>",
            _header(every),
            "<main>",
            *map(results, every),
            *map(comparison, comparisons(records)),
            "<h2>Plots</h2>",
            plots(records),
            "<h2>Tasks</h2>",
            '<p class="note">A row opens its sources, times and trajectory.</p>',
            task_table(rows, records),
            published_table(every),
            "</main>",
            _FOOTER,
            _DIALOG,
            *blobs,
            f"<script>{script}</script>",
            "</body></html>",
            "",
        ]
    )


def _asset(name: str) -> str:
    return resources.files("cuda_agent.evals.report").joinpath("page", name).read_text("utf-8")


def _policy(script: str) -> str:
    """No connection, no image, no script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _header(runs: Sequence[Analysed]) -> str:
    cards = []
    for found in runs:
        settings = found.run.settings
        facts = dict(found.facts) | {
            k: str(settings[k]) for k in ("taskset", "samples", "started", "command") if settings.get(k)
        }
        if left_out := settings.get("left_out"):
            facts["left out"] = "; ".join(f"{x.get('where')}: {x.get('reason')}" for x in left_out)
        terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
        cards.append(f'<section class="card"><h3>{escape(found.run.name)}</h3><dl>{terms}</dl></section>')
    return f'<header><h1>Evaluation</h1><div class="cards">{"".join(cards)}</div></header>'
