"""The options of the commands, as types."""

from __future__ import annotations

from typing import Annotated

import typer

from cuda_agent.config import Device, Precision, Track

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
PoolOption = Annotated[
    str,
    typer.Option(
        "--pool",
        metavar="URL",
        help="Judge by a pool (cuda-agent serve); the token is in CUDA_AGENT_POOL_TOKEN, or in the file "
        "that CUDA_AGENT_POOL_TOKEN_FILE names.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

TargetArgument = Annotated[
    str | None,
    typer.Argument(help="A task file (Model, get_inputs, get_init_inputs), or package.module:Class."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out; its own settings hold.")
]

# Options of the policies that ask a model.
PolicyOption = Annotated[str, typer.Option(help="playbook, chat:MODEL, local:PATH or replay:FILE.")]
BaseUrlOption = Annotated[str | None, typer.Option(help="Endpoint of chat:MODEL.")]
TemperatureOption = Annotated[float | None, typer.Option(min=0.0, help="Sampling, chat and local.")]
MaxTokensOption = Annotated[int | None, typer.Option(min=1, help="Longest answer, chat and local.")]
TopPOption = Annotated[float | None, typer.Option(help="Nucleus sampling, chat and local.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the sampler, chat and local.")]
ToolFormatOption = Annotated[str | None, typer.Option(help="auto, native or text; chat and local.")]
MaxRetriesOption = Annotated[int | None, typer.Option(min=0, help="chat: retries of a request.")]
PromptPriceOption = Annotated[float | None, typer.Option(help="chat: USD per million prompt tokens.")]
CompletionPriceOption = Annotated[float | None, typer.Option(help="chat: USD per million completion tokens.")]
