"""``cuda-agent report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.options import JsonOption


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that cuda-agent eval wrote.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page here.")] = None,
    json_: JsonOption = False,
) -> None:
    """Report one evaluation, or several side by side."""
    from cuda_agent.evals.report.reading import read_runs
    from cuda_agent.evals.report.tables import analyse
    from cuda_agent.evals.report.text import json_of, text_of

    found = {root: analyse(run) for root, run in read_runs(runs).items()}
    if out is not None:
        from cuda_agent.evals.report.page import html_report
        from cuda_agent.runs.run_folder import write_text

        write_text(out, html_report(found))
    every = list(found.values())
    typer.echo(json_of(every) if json_ else text_of(every), nl=json_)
    if out is not None:
        typer.echo(f"page: {out}", err=True)
