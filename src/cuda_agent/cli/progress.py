"""Progress of a run on stderr, and the final table on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuda_agent.config import Scope
from cuda_agent.result import Result
from cuda_agent.runs.summary import COLUMNS, Outcome, format_us, reasons, table_row, verdict
from cuda_agent.trajectory import ToolCall, Turn

if TYPE_CHECKING:
    from cuda_agent.workspace.snapshot import Snapshot

_MAX_WIDTH = 100
# A log or a pipe has no width of its own: wide enough that no cell is folded.
_FILE_WIDTH = 180


class Lines:
    """One line for each thing that happens, with the time since the start. Safe from any thread."""

    def __init__(self, *, prefix: str = "") -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._prefix = prefix

    def say(self, text: str) -> None:
        """One line of progress."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        line = f"{minutes:02d}:{seconds:02d} {self._prefix}{_cut(text)}"
        self._console.print(Text(line))

    def turn(self, turn: Turn) -> None:
        """The turn's words and what it did."""
        did = ", ".join(_action(call) for call in turn.calls) or turn.text or "malformed action"
        failed = " (error)" if any(o.is_error for o in turn.observations) else ""
        self.say(f"turn {turn.index + 1}: {did}{failed}")

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """Outcome of a public script."""
        if scope is Scope.PROFILE and result.candidate_us is not None:
            base = f", eager {format_us(result.eager_us.median)}" if result.eager_us else ""
            self.say(f"  {snapshot.hash}: {format_us(result.candidate_us.median)}{base}")
            return
        words = "verified" if result.correct else verdict(result)
        if scope is Scope.BUILD:
            words = "built" if result.compiled else "does not build"
        self.say(f"  {snapshot.hash}: {words}")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The final table, on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    table = Table(show_edge=False, pad_edge=False)
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if index in (0, 6) else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Table, reasons of what is not verified, and where the kernels and the report lie."""
    print_table([table_row(o.task.name, o.result) for o in outcomes])
    sys.stdout.write("times: median [10th, 90th percentile] of one call\n")
    for outcome in outcomes:
        result = outcome.result
        if result is not None and not result.correct:
            for line in reasons(result)[:5]:
                sys.stdout.write(f"{outcome.task.name}: {_cut(line, 300)}\n")
        folder = outcome.folder
        kernels = f"kernels in {folder.candidate}, " if folder.candidate.is_dir() else ""
        sys.stdout.write(f"{outcome.task.name}: {kernels}report in {folder.summary}\n")
    sys.stdout.flush()


def _action(call: ToolCall) -> str:
    for key in ("command", "file_path", "path", "pattern"):
        if isinstance(value := call.arguments.get(key), str):
            return f"{call.name}({_cut(value, 60)})"
    return call.name


def _cut(text: str, width: int = _MAX_WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
