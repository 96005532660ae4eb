"""Audit of a set from outside: a Parquet of tasks, ours or the public one, by the same filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.synthesis.dedupe.contamination import Reference
from cuda_agent.synthesis.dedupe.selection import Caps
from cuda_agent.synthesis.jsonl import read_rows
from cuda_agent.synthesis.record import Size, TaskRecord
from cuda_agent.synthesis.stages.dedupe_stage import Dedupe, deduplicate
from cuda_agent.synthesis.stages.filter_stage import Pool, Tally, run_filters
from cuda_agent.synthesis.stages.folder import SynthFolder, read_numbered
from cuda_agent.tasks.taskset_rows import Row
from cuda_agent.tasks.taskset_rows import read_rows as read_task_rows

_NO_CAPS = Caps(family=1.0, vendor=1.0, headroom_share=0.0, per_cluster=1 << 30)


@dataclass
class Audit:
    """What an audit found.

    Attributes:
        num_rows: of the file.
        exact_repeats: rows whose source another row has.
        tally: counts of the filters.
        dedupe: duplicates and contamination among the rows that pass.
        wrong_labels: rows whose ``data_source`` names another number of operators than ``ops``.
        distinct_ops: operator names.
    """

    num_rows: int = 0
    exact_repeats: int = 0
    tally: Tally = field(default_factory=Tally)
    dedupe: Dedupe = field(default_factory=Dedupe)
    wrong_labels: int = 0
    distinct_ops: int = 0


def records_of(source: str) -> Iterator[tuple[int, TaskRecord]]:
    """The rows of a set as records, numbered by row; those without text are left out.

    Raises:
        UsageError: the file cannot be read.
    """
    for number, row in enumerate(read_task_rows(source)):
        if isinstance(row.code, str | Path):
            yield number, _record(row)


def _record(row: Row) -> TaskRecord:
    code = row.code if isinstance(row.code, str) else row.code.read_text("utf-8")  # type: ignore[attr-defined]
    return TaskRecord(
        code=code,
        ops=row.ops,
        data_source=row.data_source or "foreign",
        sizes=_sizes(row.columns.get("sizes")),
        dtype=str(row.columns.get("dtype") or "float32"),
        by_mode=bool(row.columns.get("by_mode", False)),
        composer=row.where,
    )


def _sizes(value: object) -> dict[str, Size]:
    """Size constants of one of our own rows; a foreign row has none, and is run as it is."""
    if not isinstance(value, str):
        return {}
    try:
        return {name: Size(**size) for name, size in json.loads(value).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def run_audit(
    source: str,
    folder: SynthFolder,
    pool: Pool,
    *,
    references: Sequence[Reference] = (),
    limit: int | None = None,
    **told: Any,
) -> Audit:
    """Run the filters and the search for duplicates on a set; rows with an outcome are not run again.

    Args:
        source: Parquet, JSON lines or a folder.
        folder: receives ``accepted`` and ``rejected``.
        pool: workers.
        references: evaluation tasks to compare with.
        limit: rows to look at; all when left out.
        told: passed on to :func:`run_filters`.
    """
    rows = list(records_of(source))[:limit]
    repeats = Counter(record.id for _, record in rows)
    run_filters(iter(rows), folder, pool, **told)
    numbers = {number for number, _ in rows}
    return Audit(
        num_rows=len(rows),
        exact_repeats=sum(count - 1 for count in repeats.values()),
        tally=_tally(folder, numbers),
        dedupe=deduplicate(
            (r for n, r in read_numbered(folder.accepted) if n in numbers), references, _NO_CAPS
        ),
        wrong_labels=sum(not _labelled_right(record) for _, record in rows),
        distinct_ops=len({op for _, record in rows for op in record.ops}),
    )


def _tally(folder: SynthFolder, numbers: set[int]) -> Tally:
    """Counts over this run and those before it."""
    accepted = sum(row["number"] in numbers for row in read_rows(folder.accepted))
    refused = Counter(row["predicate"] for row in read_rows(folder.rejected) if row["number"] in numbers)
    return Tally(asked=accepted + refused.total(), refused=refused, accepted=accepted)


def _labelled_right(record: TaskRecord) -> bool:
    kind, _, number = record.data_source.partition("#")
    return kind != "torch" or number == str(len(record.ops))


def summary(audit: Audit) -> Mapping[str, object]:
    """The audit as plain JSON types."""
    return {
        "rows": audit.num_rows,
        "exact_repeats": audit.exact_repeats,
        "wrong_labels": audit.wrong_labels,
        "distinct_ops": audit.distinct_ops,
        "accepted": audit.tally.accepted,
        "refused": dict(audit.tally.refused),
        "duplicates": dict(audit.dedupe.reasons),
        "evaluation_tasks": audit.dedupe.num_references,
    }
