"""The commands: options in, configuration out, then a lazy import of what does the work."""

from __future__ import annotations

from typing import Annotated

import typer

import cuda_agent
from cuda_agent.cli import (
    admit_command,
    baseline_command,
    eval_command,
    inspect_commands,
    judge_command,
    models_app,
    optimize_command,
    rejudge_command,
    report_command,
    serve_command,
    synth_app,
    train_app,
)

app = typer.Typer(
    name="cuda-agent",
    help="A PyTorch module in, a verified faster kernel out.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"cuda-agent {cuda_agent.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[  # noqa: ARG001  (its callback acts)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, to stderr.")] = False,
) -> None:
    """A PyTorch module in, a verified faster kernel out."""
    if verbose:
        import logging

        logging.getLogger("cuda_agent").setLevel(logging.INFO)


app.command()(optimize_command.optimize)
app.command()(optimize_command.demo)
app.command()(judge_command.judge)
app.command()(admit_command.admit)
app.command()(inspect_commands.explain)
app.command()(inspect_commands.compare)
app.command()(inspect_commands.export)
app.command()(inspect_commands.doctor)
app.command()(inspect_commands.new)
app.command("eval")(eval_command.evaluate)
app.command()(baseline_command.baseline)
app.command()(report_command.report)
app.command()(rejudge_command.rejudge)
app.command()(serve_command.serve)
app.add_typer(synth_app.synth)
app.add_typer(train_app.train, name="train")
app.add_typer(models_app.models, name="models")
