"""What ``cuda-agent synth`` prints: progress on stderr, tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_agent.synthesis.filters.runner import Outcome
    from cuda_agent.synthesis.stages.dedupe_stage import Dedupe
    from cuda_agent.synthesis.stages.filter_stage import Tally

# A log or a pipe has no width of its own: wide enough that no cell is folded.
_FILE_WIDTH = 180
_LINE_WIDTH = 200


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, silence elsewhere; gives a function that takes the number done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task(what, total=total)
    with bar:
        yield lambda number: bar.update(task, completed=number)


def told(total: int | None) -> Callable[[Tally, int, Outcome], None]:
    """A line on stderr for each outcome."""

    def tell(tally: Tally, number: int, outcome: Outcome) -> None:
        words = f"{outcome.failed}: {outcome.detail}" if outcome.failed else _times(outcome)
        of = f" of {total}" if total else ""
        ops = " + ".join(outcome.record.ops)
        text = f"{tally.accepted}{of} accepted, {tally.asked} asked; {number} {ops}: {words}"
        say(text[:_LINE_WIDTH])

    return tell


def _times(outcome: Outcome) -> str:
    eager = outcome.record.facts.get("eager", {}).get("median_us")
    return f"accepted, eager {eager / 1e3:.3g} ms" if eager else "accepted"


def print_tally(tally: Tally) -> None:
    """Counts by filter, on stdout."""
    print(f"{tally.asked} tasks asked, {tally.accepted} accepted, {tally.lost} lost")
    _table(
        ("filter", "reached it", "refused", "threshold", "reason"),
        [[str(cell) for cell in row] for row in tally.rows()],
    )


def print_dedupe(result: Dedupe) -> None:
    """What stayed and what went, on stdout."""
    against = f"{result.num_references} evaluation tasks" if result.num_references else "no evaluation set"
    print(f"{len(result.kept)} tasks kept, screened against {against}")
    for reason, number in result.reasons.most_common():
        print(f"  taken out: {reason}: {number}")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    table = Table(show_edge=False, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
