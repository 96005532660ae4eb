"""``cuda-agent baseline``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuda_agent.cli.eval_command import opened, say
from cuda_agent.cli.eval_options import IdsOption, JobsOption, LevelsOption, LimitOption
from cuda_agent.cli.options import DeviceOption, GpuOption, JsonOption, PrecisionOption, TrackOption
from cuda_agent.config import Device, JudgeConfig, Precision, Track

if TYPE_CHECKING:
    from cuda_agent.evals.baseline_rows import BaselineRow

# A log or a pipe has no width of its own: wide enough that no cell is folded.
_FILE_WIDTH = 180


class PassName(StrEnum):
    """As ``judge.baseline_names.Pass``, whose package this module must not import at start."""

    FIRST = "first"
    SECOND = "second"
    ALL = "all"


SourceArgument = Annotated[
    str,
    typer.Argument(metavar="TASKSET", help="A folder of modules, a .parquet or .jsonl file, or kernelbench."),
]
PassOption = Annotated[
    PassName,
    typer.Option(
        "--pass", help="first: eager, torch.compile, CUDA graph, floor; second: max-autotune and settings."
    ),
]
CompileLimitOption = Annotated[float, typer.Option(min=1.0, help="Seconds for one compilation.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Measure anew what the cache has.")]
RowsOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write rows as JSON lines.")]


def baseline(
    taskset: SourceArgument,
    *,
    which: PassOption = PassName.FIRST,
    levels: LevelsOption = None,
    ids: IdsOption = None,
    limit: LimitOption = None,
    jobs: JobsOption = None,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    compile_limit: CompileLimitOption = 900.0,
    fresh: FreshOption = False,
    out: RowsOption = None,
    json_: JsonOption = False,
) -> None:
    """Measure a taskset's references without any kernel of one's own: eager, torch.compile, settings."""
    from cuda_agent.evals.baseline_rows import Baselines
    from cuda_agent.judge.baseline_names import Pass

    tasks = opened(taskset, levels=levels, ids=ids, limit=limit)
    work = Baselines(tasks.entries, JudgeConfig(device=device, track=track, precision=precision, gpu=gpu))
    started = time.monotonic()
    lines = work.measure(Pass(which), fresh=fresh, jobs=jobs, compile_limit_s=compile_limit, say=say)
    try:
        with contextlib.closing(lines):
            for line in lines:
                say(line)
        say(f"done in {time.monotonic() - started:.0f} s")
    finally:
        # Whatever ended it: what has been measured is in the cache, and is shown.
        rows = work.rows()
        if out is not None:
            _write(rows, out)
        if json_:
            sys.stdout.write("".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows))
        else:
            _print(rows, work.head)
        sys.stdout.flush()


def _write(rows: Sequence[BaselineRow], out: Path) -> None:
    from cuda_agent.runs.run_folder import write_text

    write_text(out, "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows))


def _print(rows: Sequence[BaselineRow], head: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from cuda_agent.evals.baseline_rows import COLUMNS, summary, table_row

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    table = Table(show_edge=False, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("task", "which") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in table_row(row)))
    sys.stdout.write(head + "\n")
    console.print(table)
    for line in summary(rows):
        sys.stdout.write(line + "\n")
