"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from cuda_agent.config import Device, JudgeConfig, Precision, Track

DeviceOption = Annotated[Device, typer.Option("--device", help="Where kernels run.")]
TrackOption = Annotated[Track, typer.Option("--track", help="Contract a result is reported under.")]
PrecisionOption = Annotated[
    Precision, typer.Option("--precision", help="Precision contract of track matched.")
]
GpuOption = Annotated[int, typer.Option("--gpu", min=0, help="Index of the GPU.")]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs",
        help="One input case, an item for each argument of forward: 'f32[8,64],i64[8]<1000,0.5'. "
        "Dtypes f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool; f32[8]:rand draws in [0, 1). "
        "Repeat it for more shapes, with weights: '0.7*f32[8,64]'.",
        show_default=False,
    ),
]
InitOption = Annotated[
    str | None,
    typer.Option("--init", metavar="JSON", help="Constructor arguments: a list, or an object by name."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def judge_config(device: Device, track: Track, precision: Precision, gpu: int) -> JudgeConfig:
    """Judge settings from the shared options.

    Raises:
        UsageError: they do not fit together.
    """
    return JudgeConfig(device=device, track=track, precision=precision, gpu=gpu)
