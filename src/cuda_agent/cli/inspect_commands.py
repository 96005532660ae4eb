"""``cuda-agent explain``, ``compare``, ``export``, ``doctor`` and ``new``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.options import (
    DeviceOption,
    GpuOption,
    InitOption,
    InputsOption,
    JsonOption,
    PrecisionOption,
    TrackOption,
)
from cuda_agent.config import Device, JudgeConfig, Precision, Track


def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A workspace, or the folder of a run.")],
    *,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
) -> None:
    """Show why a candidate fails or is slow."""
    from cuda_agent.inspection.explain import explain_folder

    for line in explain_folder(folder, JudgeConfig(device=device, track=track, precision=precision, gpu=gpu)):
        typer.echo(line)


def compare(
    a: Annotated[Path, typer.Argument(help="A workspace, or the folder of a run.")],
    b: Annotated[Path, typer.Argument(help="Another candidate for the same task.")],
    *,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    json_: JsonOption = False,
) -> None:
    """Time two candidates interleaved: the ratio with its 95 % interval."""
    from cuda_agent.inspection.compare import compare_folders

    report = compare_folders(a, b, JudgeConfig(device=device, track=track, precision=precision, gpu=gpu))
    typer.echo(report.to_json() if json_ else report.text())


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the package; new or empty.")] = None,
    name: Annotated[str | None, typer.Option(help="Import name of the package.")] = None,
) -> None:
    """Write a finished result as a small installable package."""
    from cuda_agent.runs.export import export_package

    path = export_package(folder, out=out, name=name).resolve()  # pip takes a bare name for one of its index
    typer.echo(f"{path}\ninstall it with: pip install --no-build-isolation {shlex.quote(str(path))}")


def doctor(json_: JsonOption = False) -> None:
    """Tell what this machine has and lacks, with remedies. Exit 1 where the main job cannot run."""
    from cuda_agent.inspection.doctor import examine, healthy

    report = examine()
    sys.stdout.write((report.to_json() if json_ else report.text()) + "\n")
    raise typer.Exit(0 if healthy(list(report.checks)) else 1)


def new(
    target: Annotated[str, typer.Argument(help="A task file, or package.module:Class.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Workspace to make; new or empty.")],
    *,
    inputs: InputsOption = None,
    init: InitOption = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
) -> None:
    """Lay out a workspace to write kernels in by hand or with an agent of your own."""
    from cuda_agent.backends import get_backend
    from cuda_agent.errors import UsageError
    from cuda_agent.tasks.targets import resolve_target
    from cuda_agent.workspace.layout import create

    config = JudgeConfig(device=device, track=track, precision=precision)
    task = resolve_target(target, inputs=inputs or (), init=init)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", "Name a new folder.")
    create(folder, task, backend=get_backend(config.device).name, track=track, precision=precision)
    typer.echo(f"{folder}: read SKILL.md, write model_new.py and kernels/, then cuda-agent judge {folder}")
