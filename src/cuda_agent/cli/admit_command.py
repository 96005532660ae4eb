"""``cuda-agent admit``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuda_agent.cli.eval_options import IdsOption, LevelsOption, LimitOption
from cuda_agent.cli.options import DeviceOption, GpuOption, JsonOption, PrecisionOption, TrackOption
from cuda_agent.config import Device, JudgeConfig, Precision, Track

if TYPE_CHECKING:
    from cuda_agent.judge.admission import Protocol
    from cuda_agent.judge.admission_set import Row
    from cuda_agent.task import Task
    from cuda_agent.tasks.selection import Selectable

# A log or a pipe has no width of its own: wide enough that no cell is folded.
_FILE_WIDTH = 180


def admit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASKSET",
            help="A task file, a folder of them, a .parquet or .jsonl file, or kernelbench.",
        ),
    ],
    *,
    device: DeviceOption = Device.AUTO,
    track: TrackOption = Track.MATCHED,
    precision: PrecisionOption = Precision.DEFAULT,
    gpu: GpuOption = 0,
    levels: LevelsOption = None,
    ids: IdsOption = None,
    limit: LimitOption = None,
    shrink_batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Try copies whose leading sizes are cut to N.")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1.0, help="Seconds for one task.")] = 600.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Keep rows as JSON lines; tasks with a row are not rerun."
        ),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run those again that were not tried to the end.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Tell tasks that zeros, a constant, a stale output, other weights or the input itself would solve."""
    from cuda_agent.backends import resolve_device
    from cuda_agent.judge.admission_set import admit_all
    from cuda_agent.tasks.selection import parse_ids, parse_levels

    config = JudgeConfig(device=resolve_device(device), track=track, precision=precision, gpu=gpu)
    entries = _entries(source, levels=parse_levels(levels), ids=parse_ids(ids), limit=limit)
    rows: list[Row] = []
    found = admit_all(
        entries, config, shrink=shrink_batch, limit_s=time_limit, out=out, retry=retry, say=_say
    )
    try:
        for row in found:
            rows.append(row)
            if json_:
                sys.stdout.write(json.dumps(row.to_dict(), allow_nan=False) + "\n")
                sys.stdout.flush()
            _say(f"{len(rows)}/{len(entries)} {row.id}: {_words(row)} ({row.seconds:.1f} s)")
    finally:
        if not json_ and rows:
            _print(rows)


@dataclass(frozen=True)
class _File:
    """A task file as the one entry of a set."""

    id: str
    task: Task
    level: int | None = None
    problem_id: int | None = None


def _entries(
    source: str, *, levels: Sequence[int], ids: Sequence[str], limit: int | None
) -> Sequence[Selectable]:
    if source.endswith(".py"):
        from cuda_agent.tasks.targets import load_task_file

        task = load_task_file(Path(source))
        return (_File(task.name, task),)
    from cuda_agent.tasks.taskset import load_taskset

    return load_taskset(source, levels=levels, ids=ids, limit=limit)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _words(row: Row) -> str:
    """Answers that pass, by protocol; why nothing could be tried otherwise."""
    parts = [f"{_title(p)}: {_passing(row, p)}" for p in row.admission.trials if _passing(row, p)]
    if row.admission.reason:
        parts.append(row.admission.reason)
    return "; ".join(parts) or "every trivial answer fails"


def _passing(row: Row, protocol: Protocol) -> str:
    return ", ".join(answer for answer, passes in row.admission.under(protocol).items() if passes)


def _title(protocol: Protocol) -> str:
    from cuda_agent.judge.admission import Protocol

    return {
        Protocol.KERNELBENCH: "own draws, 1e-2",
        Protocol.KERNELBENCH_STRICT: "own draws, 1e-4",
        Protocol.JUDGE: "judge",
    }[protocol]


def _print(rows: Sequence[Row]) -> None:
    """Table and summary on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from cuda_agent.judge.admission import Protocol

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    table = Table(show_edge=False, pad_edge=False)
    for name in ("task", *(f"passes: {_title(p)}" for p in Protocol), "least margin", "remark"):
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [row.id, *(_passing(row, p) for p in Protocol), _least_margin(row), row.admission.reason]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for line in summary(rows):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _least_margin(row: Row) -> str:
    """The answer that comes nearest to passing the judge's verification, error over budget."""
    from cuda_agent.judge.admission import Protocol

    trials = row.admission.trials.get(Protocol.JUDGE, {})
    near = [(t.margin, str(a)) for a, t in trials.items() if t.passes is False and t.margin is not None]
    if not near:
        return ""
    margin, answer = min(near)
    return f"{margin:.3g} ({answer})"


def summary(rows: Sequence[Row]) -> list[str]:
    """How many tasks are degenerate under each protocol, by which answers; how many were not tried."""
    from cuda_agent.judge.admission import Protocol

    lines = []
    for protocol in Protocol:
        counts = Counter(
            answer for row in rows for answer, passes in row.admission.under(protocol).items() if passes
        )
        flagged = sum(row.admission.degenerate_under(protocol) for row in rows)
        by = ", ".join(f"{answer} {num}" for answer, num in counts.items())
        lines.append(f"{_title(protocol)}: {flagged} of {len(rows)} degenerate" + (f" ({by})" if by else ""))
    undecided = sum(bool(row.admission.reason) for row in rows)
    if undecided:
        lines.append(f"{undecided} not tried, or not to the end: see the remarks")
    return lines
