"""The folder of a synthesis run: what each stage reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.jsonl import read_rows
from cuda_agent.synthesis.record import TaskRecord


@dataclass(frozen=True)
class Shard:
    """A part of the work: tasks number ``index``, ``index + of``, ``index + 2 of``, ..."""

    index: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/8`` is the third of eight.

        Raises:
            UsageError: another form.
        """
        first, slash, second = text.partition("/")
        if not (slash and first.isdecimal() and second.isdecimal() and int(first) < int(second)):
            raise UsageError(f"{text} is no shard", "Write --shard 0/8 to --shard 7/8.")
        return cls(int(first), int(second))

    def holds(self, number: int) -> bool:
        """Whether a task belongs to this part."""
        return number % self.of == self.index


@dataclass(frozen=True)
class SynthFolder:
    """Paths of one run; several hosts have one each and merge at ``dedupe``."""

    path: Path

    @property
    def seeds(self) -> Path:
        """Mined operators."""
        return self.path / "seeds.jsonl"

    @property
    def unfit(self) -> Path:
        """Operators that gave no seed: ``{"id", "reason"}``."""
        return self.path / "unfit.jsonl"

    @property
    def composed(self) -> Path:
        """Composed tasks: ``{"number", "record"}``."""
        return self.path / "composed.jsonl"

    @property
    def accepted(self) -> Path:
        """Tasks that passed all filters: ``{"number", "record", "margins"}``."""
        return self.path / "accepted.jsonl"

    @property
    def rejected(self) -> Path:
        """Tasks that did not: ``{"number", "id", "ops", "predicate", "detail"}``."""
        return self.path / "rejected.jsonl"

    @property
    def kept(self) -> Path:
        """Accepted tasks without duplicates and contamination, labelled."""
        return self.path / "kept.jsonl"

    @property
    def dropped(self) -> Path:
        """What ``dedupe`` took out: ``{"id", "reason", "of"}``."""
        return self.path / "dropped.jsonl"

    @property
    def neighbours(self) -> Path:
        """Nearest evaluation task of each accepted task."""
        return self.path / "neighbours.jsonl"

    @property
    def cache(self) -> Path:
        """torch.compile's files."""
        return self.path / "cache"


def read_numbered(path: Path) -> Iterator[tuple[int, TaskRecord]]:
    """Tasks of a file with their numbers; each number once.

    Raises:
        UsageError: the file cannot be read, or holds no tasks.
    """
    seen: set[int] = set()
    for row in read_rows(path):
        try:
            number, record = int(row["number"]), TaskRecord.from_dict(row["record"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path} holds a row that is no task: {error}", "Compose again.") from None
        if number not in seen:
            seen.add(number)
            yield number, record


def numbers_in(paths: Iterable[Path]) -> set[int]:
    """Numbers of the tasks that files hold."""
    return {int(row["number"]) for path in paths for row in read_rows(path) if "number" in row}
