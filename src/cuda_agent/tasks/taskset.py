"""A taskset: many tasks from a folder, a Parquet or JSONL file, or the hub; selection by level and id.

A source is one of

- a folder of modules; ``level1/19_ReLU.py`` and the like (KernelBench's layout) give level and number;
- a ``.parquet`` or ``.jsonl`` file with a column ``code`` and, where known, ``ops``, ``data_source``,
  ``level``, ``problem_id``, ``name``, ``id`` (the columns of KernelBench and of CUDA-Agent-Ops-6K);
- ``kernelbench``: the hub's set ``ScalingIntelligence/KernelBench``.

A row that is no task, and a task whose weights are not on this machine, is left out with its name and the
reason; it never takes the others down. Nothing of a task's code runs here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.errors import CudaAgentError, UsageError
from cuda_agent.task import Task
from cuda_agent.tasks.hub_weights import missing_weights
from cuda_agent.tasks.selection import entry_key, select
from cuda_agent.tasks.taskset_rows import Row, read_rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskEntry:
    """One task of a set.

    Attributes:
        id: ``level1/19`` where level and number are known, else the file's stem or the task's hash.
        task: the reference.
        level, problem_id: as in KernelBench, where known.
        columns: everything else the source says of it.
    """

    id: str
    task: Task
    level: int | None = None
    problem_id: int | None = None
    columns: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A row that is not in the set.

    Attributes:
        where: file and row, or the id.
        reason: one line.
    """

    where: str
    reason: str


@dataclass(frozen=True)
class Taskset:
    """What a source gave.

    Attributes:
        source: as named, a path made absolute.
        entries: tasks selected, by level and number.
        bad: rows that are no task.
        skipped: tasks that cannot run on this machine.
    """

    source: str
    entries: tuple[TaskEntry, ...]
    bad: tuple[LeftOut, ...] = ()
    skipped: tuple[LeftOut, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 over the ids and hashes of the tasks selected, 16 hex digits."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(f"{entry.id}\0{entry.task.hash}\n".encode())
        return digest.hexdigest()[:16]


def load_taskset(
    source: str, *, levels: Sequence[int] = (), ids: Sequence[str] = (), limit: int | None = None
) -> tuple[TaskEntry, ...]:
    """The tasks of :func:`open_taskset`; what was left out is logged."""
    taskset = open_taskset(source, levels=levels, ids=ids, limit=limit)
    for left_out in (*taskset.bad, *taskset.skipped):
        log.warning("left out %s: %s", left_out.where, left_out.reason)
    return taskset.entries


def open_taskset(
    source: str, *, levels: Sequence[int] = (), ids: Sequence[str] = (), limit: int | None = None
) -> Taskset:
    """Read a taskset.

    Args:
        source: see the module's docstring.
        levels: keep these levels; all when empty.
        ids: keep these: ``level1/19``, ``level1/19_ReLU``, ``19``, a file's stem, a range of numbers such as
            ``level1/1-20`` or ``1-20``, or a pattern such as ``level2/*``; all when empty.
        limit: keep the first so many.

    Raises:
        UsageError: no such source, nothing selected, an id that names no task, a package that is missing,
            a hub that cannot be reached.
    """
    entries: dict[str, TaskEntry] = {}
    bad: list[LeftOut] = []
    for row in read_rows(source):
        try:
            entry = _entry(row)
        except CudaAgentError as error:
            bad.append(LeftOut(row.where, error.cause))
            continue
        if entry.id in entries:
            bad.append(LeftOut(row.where, f"another task has the id {entry.id}"))
            continue
        entries[entry.id] = entry
    ordered = sorted(entries.values(), key=entry_key)
    if not ordered:
        first = f" ({bad[0].where}: {bad[0].reason})" if bad else ""
        raise UsageError(f"{source} holds no task{first}", "Tasks define Model, get_inputs, get_init_inputs.")
    chosen, skipped = _runnable(select(ordered, levels=levels, ids=ids))
    if not chosen and skipped:
        raise UsageError(f"no task of {source} can run here: {skipped[0].where}: {skipped[0].reason}")
    path = Path(source)
    return Taskset(
        str(path.resolve()) if path.exists() else source,
        tuple(chosen[:limit]),
        tuple(bad),
        tuple(skipped),
    )


def _entry(row: Row) -> TaskEntry:
    task = row.task()
    if row.level is not None and row.problem_id is not None:
        key = f"level{row.level}/{row.problem_id}"
    else:
        key = row.key or task.hash
    return TaskEntry(key, task, row.level, row.problem_id, row.columns)


def _runnable(entries: Iterable[TaskEntry]) -> tuple[list[TaskEntry], list[LeftOut]]:
    chosen: list[TaskEntry] = []
    skipped: list[LeftOut] = []
    for entry in entries:
        if missing := missing_weights(entry.task.code):
            reason = f"needs the weights of {', '.join(missing)}, which are not in this machine's hub cache"
            skipped.append(LeftOut(entry.id, reason))
        else:
            chosen.append(entry)
    return chosen, skipped
