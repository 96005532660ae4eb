"""Which tasks of a set: levels, ids, ranges and patterns. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from cuda_agent.errors import UsageError
from cuda_agent.task import Task

_RANGE = re.compile(r"(?:(?P<group>.+)/)?(?P<first>\d+)-(?P<last>\d+)")


class Selectable(Protocol):
    """A task of a set, as far as choosing it and working through the set need to know it."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> Task: ...
    @property
    def level(self) -> int | None: ...
    @property
    def problem_id(self) -> int | None: ...


E = TypeVar("E", bound=Selectable)


def parse_levels(text: str | None) -> tuple[int, ...]:
    """``1,2`` or ``1-3`` as numbers; empty for none.

    Raises:
        UsageError: something else.
    """
    levels: list[int] = []
    for part in parse_ids(text):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{text!r} names no levels", "Write --levels 1,2 or --levels 1-3.")
        levels.extend(range(int(first), int(last or first) + 1))
    return tuple(levels)


def parse_ids(text: str | None) -> tuple[str, ...]:
    """The parts of a text between its commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def entry_key(entry: Selectable) -> tuple[int, int]:
    """Sorts by level and number; tasks without come last, in their source's order."""
    last = 10**6
    return (
        last if entry.level is None else entry.level,
        last if entry.problem_id is None else entry.problem_id,
    )


def select(entries: Sequence[E], *, levels: Sequence[int] = (), ids: Sequence[str] = ()) -> list[E]:
    """Entries of these levels that any of these ids names (see ``taskset.open_taskset``), in their order.

    Raises:
        UsageError: a level or an id that names no task.
    """
    chosen = [entry for entry in entries if not levels or entry.level in levels]
    if not chosen:
        raise UsageError(f"there is no task of level {', '.join(map(str, levels))}", _known(entries))
    if not ids:
        return chosen
    wanted: set[str] = set()
    for text in ids:
        names = _matcher(text, chosen)
        found = {entry.id for entry in chosen if names(entry)}
        if not found:
            raise UsageError(f"no task has the id {text!r}", _known(chosen))
        wanted |= found
    return [entry for entry in chosen if entry.id in wanted]


def _matcher(text: str, entries: Sequence[Selectable]) -> Callable[[Selectable], bool]:
    text = text.removesuffix(".py")
    if any(_is(entry, text) for entry in entries):
        return lambda entry: _is(entry, text)
    if (found := _RANGE.fullmatch(text)) is not None:
        numbers = range(int(found["first"]), int(found["last"]) + 1)
        group = found["group"]
        return lambda entry: entry.problem_id in numbers and group in (None, f"level{entry.level}")
    return lambda entry: fnmatchcase(entry.id, text) or fnmatchcase(_named(entry), text)


def _is(entry: Selectable, text: str) -> bool:
    numbered = text.isdecimal() and entry.problem_id == int(text)
    return numbered or text in (entry.id, _named(entry), entry.task.name, entry.task.hash)


def _named(entry: Selectable) -> str:
    return f"level{entry.level}/{entry.task.name}" if entry.level is not None else entry.task.name


def _known(entries: Sequence[Selectable]) -> str:
    shown = ", ".join(entry.id for entry in entries[:3])
    return f"Among its {len(entries)} ids: {shown}."
