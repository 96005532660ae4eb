"""``cuda-agent eval``."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.cli.eval_options import (
    AdmissionOption,
    IdsOption,
    JobsOption,
    LevelsOption,
    LimitOption,
    MaxContextOption,
    MaxTurnsOption,
    OutOption,
    PriceInOption,
    PriceOutOption,
    ResumeOption,
    SamplesOption,
    SingleTurnOption,
    TasksetArgument,
    TimeLimitOption,
)
from cuda_agent.cli.options import (
    BaseUrlOption,
    DeviceOption,
    GpuOption,
    MaxRetriesOption,
    MaxTokensOption,
    PolicyOption,
    PoolOption,
    PrecisionOption,
    SeedOption,
    TemperatureOption,
    ToolFormatOption,
    TopPOption,
    TrackOption,
)
from cuda_agent.config import Device, EpisodeConfig, JudgeConfig, Precision, Track
from cuda_agent.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from cuda_agent.evals.run_files import EvalFolder, EvalSettings
    from cuda_agent.tasks.taskset import Taskset


def evaluate(
    taskset: TasksetArgument = None,
    *,
    policy: PolicyOption = "playbook",
    single_turn: SingleTurnOption = False,
    samples: SamplesOption = 1,
    levels: LevelsOption = None,
    ids: IdsOption = None,
    limit: LimitOption = None,
    jobs: JobsOption = None,
    base_url: BaseUrlOption = None,
    temperature: TemperatureOption = None,
    max_tokens: MaxTokensOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    tool_format: ToolFormatOption = None,
    max_retries: MaxRetriesOption = None,
    price_in: PriceInOption = None,
    price_out: PriceOutOption = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    max_turns: MaxTurnsOption = 200,
    max_context: MaxContextOption = 131_072,
    time_limit: TimeLimitOption = None,
    admission: AdmissionOption = True,
    out: OutOption = None,
    resume: ResumeOption = False,
    pool: PoolOption = "",
) -> None:
    """Run a policy over a taskset: pass rate, speed-ups, and what they cost."""
    if out is None:
        raise UsageError("no folder for the evaluation", "Name one with --out.")
    if resume:
        _finish(_open(out), jobs=jobs, admission=admission)
        return
    if taskset is None:
        raise UsageError("no taskset", "Name a folder of modules, a .parquet, a .jsonl, or kernelbench.")
    options = {
        "base_url": base_url,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "top_p": top_p,
        "seed": seed,
        "tool_format": tool_format,
        "max_retries": max_retries,
    }
    asked = _Asked(
        policy=_absolute(policy),
        policy_options={key: value for key, value in options.items() if value is not None},
        single_turn=single_turn,
        samples=samples,
        contract=JudgeConfig(device=device, track=track, precision=precision, gpu=gpu),
        limits=EpisodeConfig(max_turns=max_turns, max_context=max_context, time_limit_s=time_limit),
        prices=(price_in, price_out),
        pool=pool,
    )
    folder = _created(out, opened(taskset, levels=levels, ids=ids, limit=limit), asked)
    _finish(folder, jobs=jobs, admission=admission)


@dataclass(frozen=True)
class _Asked:
    policy: str
    policy_options: dict[str, Any]
    single_turn: bool
    samples: int
    contract: JudgeConfig
    limits: EpisodeConfig
    prices: tuple[float | None, float | None]
    pool: str


def opened(source: str, *, levels: str | None, ids: str | None, limit: int | None) -> Taskset:
    """The taskset of the options; what is left out of it is told."""
    from cuda_agent.tasks.selection import parse_ids, parse_levels
    from cuda_agent.tasks.taskset import open_taskset

    taskset = open_taskset(source, levels=parse_levels(levels), ids=parse_ids(ids), limit=limit)
    for kind, rows in (("bad", taskset.bad), ("skipped", taskset.skipped)):
        if rows:
            shown = "; ".join(f"{row.where}: {row.reason}" for row in rows[:3])
            say(f"{len(rows)} {kind}: {shown}" + ("; ..." if len(rows) > 3 else ""))
    return taskset


def _created(out: Path, taskset: Taskset, asked: _Asked) -> EvalFolder:
    """The evaluation's folder, laid out; whatever is wrong with the options is told before."""
    from cuda_agent.agent.policies import make_policy
    from cuda_agent.evals.evaluation import create_evaluation
    from cuda_agent.evals.run_files import Arm, EvalSettings
    from cuda_agent.evals.setting import device_setting
    from cuda_agent.runs.run_folder import check_free

    check_free(out)
    if not asked.policy.startswith("local:"):  # a local model's weights are loaded by the attempts only
        make_policy(asked.policy, **asked.policy_options).close()
    found = device_setting(asked.contract)
    settings = EvalSettings(
        taskset=taskset.source,
        taskset_hash=taskset.hash,
        policy=asked.policy,
        arm=Arm.SINGLE_TURN if asked.single_turn else Arm.AGENT,
        policy_options=asked.policy_options,
        samples=asked.samples,
        track=str(asked.contract.track),
        precision=str(asked.contract.precision),
        device=str(found.device),
        gpu=asked.contract.gpu,
        device_name=found.name,
        versions=found.versions,
        max_turns=asked.limits.max_turns,
        max_context=asked.limits.max_context,
        time_limit_s=asked.limits.time_limit_s,
        price_in=asked.prices[0],
        price_out=asked.prices[1],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        pool=asked.pool,
        command=shlex.join(["cuda-agent", *sys.argv[1:]]),
        left_out=tuple(
            {"where": row.where, "reason": row.reason} for row in (*taskset.bad, *taskset.skipped)
        ),
    )
    return create_evaluation(out, taskset, settings)


def _absolute(policy: str) -> str:
    """The policy with its file's path made absolute: a resumed evaluation may start elsewhere."""
    kind, _, name = policy.partition(":")
    return f"{kind}:{Path(name).resolve()}" if kind in ("local", "replay") and name else policy


def _open(out: Path) -> EvalFolder:
    from cuda_agent.evals.run_files import EvalFolder

    return EvalFolder.open(out)


def _finish(folder: EvalFolder, *, jobs: int | None, admission: bool) -> None:
    """Make what is missing and print the report.

    Raises:
        InfrastructureError: our own side lost attempts.
    """
    from cuda_agent.evals.evaluation import Evaluation, sole_user
    from cuda_agent.evals.metrics_records import Verdict
    from cuda_agent.evals.progress import Progress
    from cuda_agent.evals.task_facts import add_baselines, add_flags

    settings = folder.settings()
    with sole_user(folder):
        add_baselines(folder)
        progress = Progress(len(folder.tasks()) * settings.samples)
        for line in folder.attempts():
            progress.add(line)
        started = time.monotonic()
        Evaluation(
            folder,
            jobs=jobs or _default_jobs(settings),
            on_attempt=lambda line: say(progress.add(line)),
            say=say,
        ).run()
        if admission:
            add_flags(folder, say=say)
    say(f"done in {time.monotonic() - started:.0f} s: {progress.rates()}")
    _print_report(folder)
    lost = [a for a in folder.attempts() if a.verdict() is Verdict.INFRASTRUCTURE]
    if lost:
        raise InfrastructureError(
            f"{len(lost)} attempts were lost by our own side ({lost[0].uncounted_reason()[:200]})",
            f"Go on with: cuda-agent eval --resume --out {folder.root}",
        )


def _default_jobs(settings: EvalSettings) -> int:
    """One on a CPU, where a build beside a measurement disturbs it; some on a GPU."""
    return 1 if settings.device == Device.CPU else max(1, min(4, (os.cpu_count() or 1) // 4))


def _print_report(folder: EvalFolder) -> None:
    from cuda_agent.evals.report.reading import read_run
    from cuda_agent.evals.report.text import text_report

    sys.stdout.write(text_report([read_run(folder.root)]).rstrip() + "\n")
    sys.stdout.write(f"page: cuda-agent report {folder.root} --out report.html\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line of progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
