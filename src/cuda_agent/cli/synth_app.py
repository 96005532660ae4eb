"""``cuda-agent synth``: the group of its commands; ``cuda-agent synth --preset demo`` runs all stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli import synth_commands

synth = typer.Typer(
    name="synth",
    help="Make training tasks from seeds: compose, filter, dedupe, export; audit a set.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)


@synth.callback()
def root(
    context: typer.Context,
    *,
    preset: Annotated[str | None, typer.Option(help="Run all stages: demo or full.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = synth_commands.DEFAULT_OUT,
) -> None:
    """Make training tasks from seeds: compose, filter, dedupe, export; audit a set."""
    if context.invoked_subcommand is not None:
        return
    if preset is None:
        typer.echo(context.get_help())
        raise typer.Exit
    synth_commands.run(preset=preset, out=out)


synth.command()(synth_commands.mine)
synth.command()(synth_commands.compose)
synth.command("filter")(synth_commands.filter_)
synth.command()(synth_commands.dedupe)
synth.command()(synth_commands.export)
synth.command()(synth_commands.audit)
synth.command()(synth_commands.run)
