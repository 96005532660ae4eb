"""The options of ``eval`` and ``baseline``, as types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TasksetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TASKSET",
        help="A folder of modules, a .parquet or .jsonl file, or kernelbench.",
        show_default=False,
    ),
]
LevelsOption = Annotated[str | None, typer.Option(help="Only these levels: 1,2 or 1-3.")]
IdsOption = Annotated[
    str | None, typer.Option(help="Only these tasks: level1/19,level2/1-20, stems, patterns.")
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")]
SamplesOption = Annotated[int, typer.Option(min=1, help="Attempts for each task.")]
SingleTurnOption = Annotated[
    bool, typer.Option("--single-turn", help="One answer an attempt: no tools, no feedback.")
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="How many at once; timed parts run one at a time.")
]
PriceInOption = Annotated[
    float | None, typer.Option("--prompt-price", min=0.0, help="USD per million prompt tokens.")
]
PriceOutOption = Annotated[
    float | None, typer.Option("--completion-price", min=0.0, help="USD per million completion tokens.")
]
MaxTurnsOption = Annotated[int, typer.Option(min=1, help="Turn limit of an attempt.")]
MaxContextOption = Annotated[int, typer.Option(min=1, help="Context limit, tokens.")]
TimeLimitOption = Annotated[float | None, typer.Option(help="Limit of an attempt, seconds.")]
AdmissionOption = Annotated[
    bool, typer.Option("--admission/--no-admission", help="Flag tasks that trivial answers pass.")
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for everything; new or empty.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with the evaluation in --out; its settings hold.")
]
