"""The three plots of the page: speed-up distribution, fast_p, achieved time against the floor."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cuda_agent.evals.metrics import fast_p_curve
from cuda_agent.evals.metrics_records import Baseline, EvalRun
from cuda_agent.evals.metrics_scored import Scored, counted, score
from cuda_agent.evals.report.plots import Series, histogram, scatter_plot, step_plot


def plots(runs: Sequence[EvalRun]) -> str:
    """Figures with a legend each."""
    scored = {run.name: counted(score(run, run.tasks)) for run in runs}
    figures = [
        (
            f"Speed-up over {words}",
            histogram(_speedups(scored, b), title=f"Speed-up over {words}", x="speed-up"),
        )
        for b, words in ((Baseline.EAGER, "eager"), (Baseline.COMPILE, "torch.compile"))
    ]
    figures.append(
        (
            "fast_p: share of tasks correct and more than p times as fast as torch.compile",
            step_plot(_fast_p(scored), title="fast_p against torch.compile", x="p", y="share of tasks"),
        )
    )
    floors = _floors(scored)
    if any(s.points for s in floors):
        chart = scatter_plot(floors, title="Achieved time against the floor", x="memory floor", y="candidate")
        figures.append(("Achieved time against the memory floor (dashed: reached)", chart))
    legend = "".join(f'<span class="key c{i % 6}"></span>{escape(name)}' for i, name in enumerate(scored))
    cards = "".join(
        f'<figure class="card"><figcaption>{escape(words)}</figcaption>{chart}'
        f'<p class="legend">{legend}</p></figure>'
        for words, chart in figures
    )
    return f'<div class="plots">{cards}</div>'


def _speedups(scored: dict[str, list[list[Scored]]], baseline: Baseline) -> list[Series]:
    found = []
    for name, groups in scored.items():
        values = [(s.speedup(baseline), s.task.id) for g in groups for s in g]
        found.append(Series(name, [(v, 0.0, key) for v, key in values if v is not None]))
    return found


def _fast_p(scored: dict[str, list[list[Scored]]]) -> list[Series]:
    return [
        Series(
            name,
            [
                (p, share, f"{name}: {100 * share:.1f} % above {p:g}x")
                for p, share in fast_p_curve(groups, Baseline.COMPILE)
            ],
        )
        for name, groups in scored.items()
    ]


def _floors(scored: dict[str, list[list[Scored]]]) -> list[Series]:
    found = []
    for name, groups in scored.items():
        points = []
        for s in (s for g in groups for s in g):
            share, floor = s.roofline_share(), s.task.baseline_us("floor")
            if share is not None and floor is not None:
                points.append(
                    (floor, floor / share, f"{s.task.id} {s.task.name}: {100 * share:.0f} % of the floor")
                )
        found.append(Series(name, points))
    return found
