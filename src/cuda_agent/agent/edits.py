"""Exact string replacement, with help for a model whose string was not found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from cuda_agent.agent.paths import ToolError


class EditStep(TypedDict):
    """One replacement of a MultiEdit."""

    old_string: str
    new_string: str
    replace_all: NotRequired[bool]


def apply_edits(text: str, edits: Sequence[EditStep]) -> tuple[str, int]:
    """The text after all edits, in order, and the number of replacements. All or none.

    Raises:
        ToolError: an edit does not apply; says which and why.
    """
    replaced = 0
    for number, edit in enumerate(edits, 1):
        try:
            text, count = _apply(text, edit)
        except ToolError as error:
            where = f"edit {number} of {len(edits)}: " if len(edits) > 1 else ""
            nothing = "; no edit was applied" if len(edits) > 1 else ""
            raise ToolError(f"{where}{error}{nothing}") from None
        replaced += count
    return text, replaced


def _apply(text: str, edit: EditStep) -> tuple[str, int]:
    old, new = edit["old_string"], edit["new_string"]
    if not old:
        raise ToolError("old_string is empty; use Write to make a file")
    if old == new:
        raise ToolError("old_string and new_string are the same")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"old_string was not found{_hint(text, old)}")
    if count > 1 and not edit.get("replace_all", False):
        raise ToolError(
            f"old_string occurs {count} times (lines {_lines(text, old)}); "
            "add lines around it to make it unique, or set replace_all"
        )
    return text.replace(old, new), count


def _lines(text: str, old: str) -> str:
    starts = [match.start() for match in re.finditer(re.escape(old), text)][:8]
    return ", ".join(str(text.count("\n", 0, start) + 1) for start in starts)


def _hint(text: str, old: str) -> str:
    """Why an almost right string does not match: line numbers copied, blanks, or the closest line."""
    if re.match(r" *\d+\t", old):
        return ": leave out the line numbers that Read shows"
    if " ".join(old.split()) in " ".join(text.split()):
        return ": blanks or line ends differ; copy them exactly as Read shows them"
    first = next((line for line in old.splitlines() if line.strip()), "")
    lines = text.splitlines()[:5000]
    close = difflib.get_close_matches(first, lines, n=1, cutoff=0.6)
    if not close:
        return "; Read the file again"
    return f"; the closest line is {lines.index(close[0]) + 1}: {close[0].strip()[:200]}"
