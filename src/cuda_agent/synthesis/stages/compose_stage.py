"""The compose stage: tasks from seeds, appended to a file, gone on with where an earlier run stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.jsonl import Appender
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.stages.folder import Shard, SynthFolder, numbers_in, read_numbered

_EMPTY_DRAWS = 2000


class Composer(Protocol):
    """Makes tasks by number: the random composer, or one that asks a model."""

    dropped: Counter[str]

    def one(self, number: int) -> TaskRecord | None:
        """Task ``number``, or ``None`` where nothing came of it (``dropped`` counts why)."""
        ...


def composed(
    composer: Composer, folder: SynthFolder, shard: Shard, *, count: int | None = None
) -> Iterator[tuple[int, TaskRecord]]:
    """Tasks of this shard: those in the folder first, then new ones, each on disk before it is given.

    Args:
        composer: of new tasks.
        folder: holds ``composed``.
        shard: which numbers to make.
        count: tasks in all; endless when left out.

    Raises:
        UsageError: the seeds give no task.
    """
    given, last = 0, shard.index - shard.of
    for number, record in read_numbered(folder.composed):
        if shard.holds(number):
            last = max(last, number)
            if count is None or given < count:
                given += 1
                yield number, record
    with Appender(folder.composed) as file:
        for number, record in _new(composer, shard, last + shard.of):
            if count is not None and given >= count:
                return
            file.append({"number": number, "record": record.to_dict()})
            given += 1
            yield number, record


def _new(composer: Composer, shard: Shard, start: int) -> Iterator[tuple[int, TaskRecord]]:
    empty = 0
    number = start
    while True:
        record = composer.one(number)
        empty = 0 if record is not None else empty + 1
        if empty > _EMPTY_DRAWS:
            why = ", ".join(f"{what} {n}" for what, n in composer.dropped.most_common(3))
            raise UsageError(f"the seeds give no task: {why}", "Name a file with more seeds.")
        if record is not None:
            yield number, record
        number += shard.of


def run_compose(
    composer: Composer,
    folder: SynthFolder,
    shard: Shard,
    *,
    count: int,
    on_task: Callable[[int], None] = lambda _: None,
) -> int:
    """Bring a folder to ``count`` composed tasks; returns how many are new."""
    before = len(numbers_in([folder.composed]))
    total = 0
    for total, _ in enumerate(composed(composer, folder, shard, count=count), start=1):
        on_task(total)
    return max(0, total - before)


def seeds_path(folder: SynthFolder, named: Path | None) -> Path:
    """The seeds to compose from: the file named, else the folder's own.

    Raises:
        UsageError: there is none.
    """
    path = named or folder.seeds
    if not path.is_file():
        raise UsageError(
            f"there are no seeds at {path}", "Name a file of seeds with --seeds (docs/synthesis.md)."
        )
    return path
