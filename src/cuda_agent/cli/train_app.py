"""``cuda-agent train``: the stages, and what they would cost."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

ConfigOption = Annotated[Path, typer.Option("--config", help="A .toml such as configs/small.toml.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the run; continued where it is.")]


@train.callback()
def root(context: typer.Context) -> None:
    """Train a model: sft, warmup, collect, rft, value, ppo, or all of them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@train.command("sft")
def sft(*, config: ConfigOption, out: OutOption) -> None:
    """Cold start from demonstrations."""
    _run(config, out, "sft")


@train.command("warmup")
def warmup(*, config: ConfigOption, out: OutOption) -> None:
    """Single-turn PPO."""
    _run(config, out, "warmup")


@train.command("collect")
def collect(*, config: ConfigOption, out: OutOption) -> None:
    """Trajectories of the warmed-up model in the agent loop."""
    _run(config, out, "collect")


@train.command("rft")
def rft(*, config: ConfigOption, out: OutOption) -> None:
    """Rejection fine-tuning of the actor."""
    _run(config, out, "rft")


@train.command("value")
def value(*, config: ConfigOption, out: OutOption) -> None:
    """Pretraining of the critic."""
    _run(config, out, "value")


@train.command("ppo")
def ppo(*, config: ConfigOption, out: OutOption) -> None:
    """Agentic PPO over several turns."""
    _run(config, out, "ppo")


@train.command("all")
def everything(*, config: ConfigOption, out: OutOption) -> None:
    """All stages that are left, in order."""
    _run(config, out, None)


@train.command("plan")
def plan(*, config: ConfigOption) -> None:
    """Memory, tokens, judged candidates and wall time by phase; runs nothing."""
    from cuda_agent.rl.config_file import load_config
    from cuda_agent.rl.plan import plan_text

    sys.stdout.write(plan_text(load_config(config)) + "\n")


def _run(config: Path, out: Path, name: str | None) -> None:
    from cuda_agent.rl.config_file import load_config

    settings = load_config(config)  # a wrong file is told before torch is imported
    from cuda_agent.rl.stages import StageName, Training

    with contextlib.closing(Training(settings, out, _say)) as training:
        if name is None:
            training.run_all()
        else:
            training.run(StageName(name))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
