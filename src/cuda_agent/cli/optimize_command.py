"""``cuda-agent optimize`` and ``cuda-agent demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuda_agent.cli.options import (
    DeviceOption,
    GpuOption,
    InitOption,
    InputsOption,
    JsonOption,
    PrecisionOption,
    TrackOption,
    judge_config,
)
from cuda_agent.config import Device, EpisodeConfig, Precision, Track
from cuda_agent.errors import UsageError
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.trajectory import Ending

if TYPE_CHECKING:
    from cuda_agent.runs.summary import Outcome

EXIT_NOT_VERIFIED = 3


def optimize(
    target: Annotated[
        str | None,
        typer.Argument(help="A task file (Model, get_inputs, get_init_inputs), or package.module:Class."),
    ] = None,
    *,
    inputs: InputsOption = None,
    init: InitOption = None,
    policy: Annotated[
        str,
        typer.Option(help="playbook, chat:MODEL, local:PATH or replay:FILE."),
    ] = "playbook",
    base_url: Annotated[str | None, typer.Option(help="Endpoint of chat:MODEL.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling, chat and local.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, chat and local.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling, chat and local.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler, chat and local.")] = None,
    tool_format: Annotated[str | None, typer.Option(help="auto, native or text; chat and local.")] = None,
    max_retries: Annotated[int | None, typer.Option(min=0, help="chat: retries of a request.")] = None,
    prompt_price: Annotated[float | None, typer.Option(help="chat: USD per million prompt tokens.")] = None,
    completion_price: Annotated[
        float | None, typer.Option(help="chat: USD per million completion tokens.")
    ] = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    max_turns: Annotated[int, typer.Option(min=1, help="Turn limit.")] = 200,
    max_context: Annotated[int, typer.Option(min=1, help="Context limit, tokens.")] = 131_072,
    time_limit: Annotated[float | None, typer.Option(help="Limit of the episode, seconds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for everything; new or empty.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; its own settings hold.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Write, verify and time faster kernels for a PyTorch module."""
    from cuda_agent.cli.progress import Lines, print_outcomes
    from cuda_agent.runs.optimization import optimize_task, resume_run
    from cuda_agent.tasks.targets import resolve_target

    reporter = Lines()
    if resume:
        outcome = resume_run(_resumed_folder(out, target), reporter=reporter)
    elif target is None:
        raise UsageError("no target", "Name a task file or package.module:Class.")
    else:
        options = {
            "base_url": base_url,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "top_p": top_p,
            "seed": seed,
            "tool_format": tool_format,
            "max_retries": max_retries,
            "prompt_price": prompt_price,
            "completion_price": completion_price,
        }
        settings = OptimizeSettings(
            policy=policy,
            policy_options={key: value for key, value in options.items() if value is not None},
            judge=judge_config(device, track, precision, gpu),
            episode=EpisodeConfig(max_turns=max_turns, max_context=max_context, time_limit_s=time_limit),
        )
        task = resolve_target(target, inputs=inputs or (), init=init)
        outcome = optimize_task(task, settings, out=out, reporter=reporter)
    if json_:
        _print_json(outcome)
    else:
        print_outcomes([outcome])
    raise typer.Exit(exit_code(outcome))


def exit_code(outcome: Outcome) -> int:
    """0: verified; 130: interrupted; 1: the policy or our side failed; 3: no verified kernel."""
    if outcome.ending is Ending.INTERRUPTED:
        return 130
    failed = outcome.ending in (Ending.POLICY_ERROR, Ending.SANDBOX_ERROR)
    if failed:
        typer.echo(f"cuda-agent: the episode ended early: {outcome.detail}", err=True)
    if failed or outcome.result is None or outcome.result.infrastructure is not None:
        return 1
    return 0 if outcome.result.correct else EXIT_NOT_VERIFIED


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for everything; new or empty.")] = None,
    device: DeviceOption = Device.AUTO,
    names: Annotated[list[str] | None, typer.Argument(help="Examples to run; all when left out.")] = None,
) -> None:
    """Optimise the bundled examples with the playbook and print the table."""
    from cuda_agent.cli.demo import run_demo
    from cuda_agent.cli.progress import print_outcomes

    outcomes, failures = run_demo(out=out, device=device, names=names or ())
    print_outcomes(outcomes)
    for failure in failures:
        typer.echo(f"cuda-agent: {failure}", err=True)
    raise typer.Exit(1 if failures else max(exit_code(outcome) for outcome in outcomes))


def _resumed_folder(out: Path | None, target: str | None) -> Path:
    from cuda_agent.runs.run_folder import DEFAULT_ROOT

    if out is not None:
        return out
    name = (target or "").rpartition(":")[2].lower().removesuffix(".py")
    found = sorted(DEFAULT_ROOT.glob(f"{Path(name).name}*/settings.json"), key=lambda p: p.stat().st_mtime)
    if not name or not found:
        raise UsageError("--resume does not know which run", "Name its folder with --out.")
    return found[-1].parent


def _print_json(outcome: Outcome) -> None:
    import json

    result: Any = None if outcome.result is None else json.loads(outcome.result.to_json())
    typer.echo(
        json.dumps(
            {
                "folder": str(outcome.folder.root),
                "ending": str(outcome.ending),
                "detail": outcome.detail,
                "num_turns": outcome.num_turns,
                "result": result,
            }
        )
    )
