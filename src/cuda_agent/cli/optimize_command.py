"""``cuda-agent optimize`` and ``cuda-agent demo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from cuda_agent.cli.options import (
    BaseUrlOption,
    CompletionPriceOption,
    DeviceOption,
    GpuOption,
    InitOption,
    InputsOption,
    JsonOption,
    MaxRetriesOption,
    MaxTokensOption,
    PolicyOption,
    PoolOption,
    PrecisionOption,
    PromptPriceOption,
    ResumeOption,
    SeedOption,
    TargetArgument,
    TemperatureOption,
    ToolFormatOption,
    TopPOption,
    TrackOption,
)
from cuda_agent.config import Device, EpisodeConfig, JudgeConfig, Precision, Track
from cuda_agent.errors import UsageError
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.trajectory import Ending

if TYPE_CHECKING:
    from cuda_agent.runs.summary import Outcome

EXIT_NOT_VERIFIED = 3


def optimize(
    target: TargetArgument = None,
    *,
    inputs: InputsOption = None,
    init: InitOption = None,
    policy: PolicyOption = "playbook",
    base_url: BaseUrlOption = None,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    tool_format: ToolFormatOption = None,
    max_retries: MaxRetriesOption = None,
    prompt_price: PromptPriceOption = None,
    completion_price: CompletionPriceOption = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    max_turns: Annotated[int, typer.Option(min=1, help="Turn limit.")] = 200,
    max_context: Annotated[int, typer.Option(min=1, help="Context limit, tokens.")] = 131_072,
    time_limit: Annotated[float | None, typer.Option(help="Limit of the episode, seconds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for everything; new or empty.")] = None,
    resume: ResumeOption = False,
    pool: PoolOption = "",
    json_: JsonOption = False,
) -> None:
    """Write, verify and time faster kernels for a PyTorch module."""
    if resume:
        _finish(_resumed(out, target), as_json=json_)
    if target is None:
        raise UsageError("no target", "Name a task file or package.module:Class.")
    settings = OptimizeSettings(
        policy=policy,
        policy_options=_given(
            base_url=base_url,
            temperature=temperature,
            max_tokens=max_tokens,
            top_p=top_p,
            seed=seed,
            tool_format=tool_format,
            max_retries=max_retries,
            prompt_price=prompt_price,
            completion_price=completion_price,
        ),
        judge=JudgeConfig(device=device, track=track, precision=precision, gpu=gpu),
        episode=EpisodeConfig(max_turns=max_turns, max_context=max_context, time_limit_s=time_limit),
        pool=pool,
    )
    outcome = _optimized(target, settings, inputs=inputs or (), init=init, out=out)
    _finish(outcome, as_json=json_)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; the policy's own defaults hold for the rest."""
    return {key: value for key, value in options.items() if value is not None}


def _optimized(
    target: str, settings: OptimizeSettings, *, inputs: Sequence[str], init: str | None, out: Path | None
) -> Outcome:
    from cuda_agent.cli.progress import Lines
    from cuda_agent.runs.optimization import optimize_task
    from cuda_agent.runs.run_folder import check_free
    from cuda_agent.tasks.targets import resolve_target

    check_free(out)  # before anything slow
    return optimize_task(
        resolve_target(target, inputs=inputs, init=init), settings, out=out, reporter=Lines()
    )


def _resumed(out: Path | None, target: str | None) -> Outcome:
    from cuda_agent.cli.progress import Lines
    from cuda_agent.runs.optimization import resume_run

    return resume_run(_resumed_folder(out, target), reporter=Lines())


def _finish(outcome: Outcome, *, as_json: bool) -> NoReturn:
    """Show the outcome and end with its exit code."""
    from cuda_agent.cli.progress import print_outcomes

    if as_json:
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
