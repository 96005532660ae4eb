"""``cuda-agent report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.options import JsonOption


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that cuda-agent eval wrote.")],
    *,
    json_: JsonOption = False,
) -> None:
    """Report one evaluation, or several side by side."""
    from cuda_agent.evals.report.reading import read_run
    from cuda_agent.evals.report.text import json_report, text_report

    read = [read_run(run) for run in runs]
    typer.echo(json_report(read) if json_ else text_report(read), nl=json_)
