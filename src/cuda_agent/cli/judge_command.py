"""``cuda-agent judge``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuda_agent.cli.options import (
    DeviceOption,
    GpuOption,
    JsonOption,
    PoolOption,
    PrecisionOption,
    TrackOption,
)
from cuda_agent.config import Device, JudgeConfig, Precision, Track
from cuda_agent.errors import CudaAgentError, InfrastructureError

if TYPE_CHECKING:
    from cuda_agent.result import Result
    from cuda_agent.task import Task

_POLL_S = 0.5
_UNVERIFIED = (
    "the reference is the workspace's own model.py, which its author may have changed; name yours by --task"
)


def judge(
    workspace: Annotated[Path, typer.Argument(help="Folder with model_new.py and kernels/.")],
    *,
    task: Annotated[
        Path | None,
        typer.Option("--task", metavar="FILE", help="The reference; the workspace's model.py if left out."),
    ] = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    watch: Annotated[bool, typer.Option("--watch", help="Judge again on every save, until Ctrl-C.")] = False,
    pool: PoolOption = "",
    json_: JsonOption = False,
) -> None:
    """Reach a verdict on a workspace: build, verify, profile. Exit 0 whatever the verdict is."""
    from cuda_agent.tasks.targets import load_task_file

    config = JudgeConfig(device=device, track=track, precision=precision, gpu=gpu)
    reference = load_task_file(task) if task is not None else None
    if watch:
        _watch(workspace, reference, config, pool=pool, as_json=json_)
        return
    result = _judge(workspace, reference, config, pool)
    _show(workspace, result, as_json=json_)
    if result.infrastructure is not None:
        # The object is on stdout; the line on stderr and the exit code say that it holds no verdict.
        raise InfrastructureError(f"no verdict: {result.infrastructure.rstrip('.')}", "Judge again.")


def _judge(workspace: Path, task: Task | None, config: JudgeConfig, pool: str) -> Result:
    from cuda_agent.pool.remote import reach_verdict

    return reach_verdict(
        workspace,
        task=task,
        config=config,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        pool=pool,
    )


def _show(workspace: Path, result: Result, *, as_json: bool) -> None:
    from cuda_agent.cli.progress import print_table
    from cuda_agent.runs.summary import reasons, table_row

    if as_json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        print_table([table_row(workspace.resolve().name, result)])
        notes = result.notes if result.reference == "task" else (_UNVERIFIED, *result.notes)
        for line in [*reasons(result), *(f"note: {note}" for note in notes)]:
            sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _watch(workspace: Path, task: Task | None, config: JudgeConfig, *, pool: str, as_json: bool) -> None:
    """Judge, then again whenever the candidate's bytes change; errors are told and waited out."""
    last = None
    while True:
        state = _state(workspace)
        if state != last:
            last = state
            try:
                _show(workspace, _judge(workspace, task, config, pool), as_json=as_json)
            except CudaAgentError as error:
                print(f"cuda-agent: {error}", file=sys.stderr, flush=True)
            print(f"watching {workspace} (Ctrl-C ends)", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def _state(workspace: Path) -> str:
    from cuda_agent.workspace.snapshot import freeze

    try:
        return freeze(workspace).hash
    except CudaAgentError as error:
        return str(error)
