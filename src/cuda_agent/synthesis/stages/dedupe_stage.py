"""The dedupe stage: duplicates and contamination out, caps held, tasks labelled; shards merge here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.synthesis.dedupe import graph
from cuda_agent.synthesis.dedupe.contamination import Neighbour, Reference, Screen
from cuda_agent.synthesis.dedupe.near import near_pairs, shingles
from cuda_agent.synthesis.dedupe.selection import Caps, capped, labelled, rows_of
from cuda_agent.synthesis.jsonl import write_rows
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.stages.folder import SynthFolder, read_numbered


@dataclass
class Dedupe:
    """What came of it.

    Attributes:
        kept: tasks that stay, labelled.
        dropped: ``{"id", "reason", "of"}`` of each that went.
        neighbours: nearest evaluation task of each task that was screened, by id.
        num_references: evaluation tasks screened against; 0: not screened.
        num_untraced: of those, how many have no graph.
    """

    kept: list[TaskRecord] = field(default_factory=list)
    dropped: list[dict[str, str]] = field(default_factory=list)
    neighbours: dict[str, Neighbour] = field(default_factory=dict)
    num_references: int = 0
    num_untraced: int = 0

    @property
    def reasons(self) -> Counter[str]:
        """How many went, by reason."""
        return Counter(row["reason"] for row in self.dropped)


def deduplicate(records: Iterable[TaskRecord], references: Sequence[Reference], caps: Caps) -> Dedupe:
    """Take duplicates, contaminated tasks and surplus out of a set.

    Args:
        records: accepted tasks, of one or several shards.
        references: the evaluation set; empty: nothing is screened, and the report says so.
        caps: shares to hold.
    """
    result = Dedupe(num_references=len(references), num_untraced=sum(not item.rows for item in references))
    left = _without_equal(records, result)
    left = _without_near(left, result)
    left = _without_contaminated(left, Screen(references), result) if references else left
    kept, _ = capped(left, caps)
    stays = {record.id for record in kept}
    result.dropped += [_row(r.id, "over a cap") for r in left if r.id not in stays]
    result.kept = [labelled(record, _nearest(result, record)) for record in kept]
    return result


def _row(id_: str, reason: str, of: str = "") -> dict[str, str]:
    return {"id": id_, "reason": reason, "of": of}


def _nearest(result: Dedupe, record: TaskRecord) -> Mapping[str, Any]:
    near = result.neighbours.get(record.id)
    return {} if near is None else {"nearest": near.id, "similarity": round(near.similarity, 4)}


def _without_equal(records: Iterable[TaskRecord], result: Dedupe) -> list[TaskRecord]:
    """Equal sources, then equal graphs (sizes do not count): the first one stays."""
    sources: dict[str, str] = {}
    graphs: dict[str, str] = {}
    left = []
    for record in records:
        key = graph.graph_key(rows_of(record)) if rows_of(record) else f"untraced {record.id}"
        if record.id in sources:
            result.dropped.append(_row(record.id, "the same source", record.id))
        elif key in graphs:
            result.dropped.append(_row(record.id, "the same graph", graphs[key]))
        else:
            sources[record.id], graphs[key] = record.id, record.id
            left.append(record)
    return left


def _without_near(records: Sequence[TaskRecord], result: Dedupe) -> list[TaskRecord]:
    gone: set[int] = set()
    for earlier, later in sorted(near_pairs([shingles(record.code) for record in records])):
        if earlier not in gone and later not in gone:
            gone.add(later)
            result.dropped.append(_row(records[later].id, "nearly the same source", records[earlier].id))
    return [record for index, record in enumerate(records) if index not in gone]


def _without_contaminated(records: Sequence[TaskRecord], screen: Screen, result: Dedupe) -> list[TaskRecord]:
    left = []
    for record in records:
        near = screen.nearest(record.code, rows_of(record))
        result.neighbours[record.id] = near
        if near.match is None:
            left.append(record)
        else:
            result.dropped.append(_row(record.id, f"evaluation task, by {near.match}", near.id))
    return left


def run_dedupe(
    folders: Sequence[SynthFolder], out: SynthFolder, references: Sequence[Reference], caps: Caps
) -> Dedupe:
    """Merge the accepted tasks of folders and write ``kept``, ``dropped`` and ``neighbours``.

    The result does not depend on the order of the folders: tasks are taken by number, then by hash.

    Raises:
        UsageError: a file cannot be read or written.
    """
    result = deduplicate(merged(folders), references, caps)
    write_rows(out.kept, [record.to_dict() for record in result.kept])
    write_rows(out.dropped, [dict(row) for row in result.dropped])
    rows = [
        {"id": id_, "nearest": near.id, "similarity": near.similarity, "match": near.match}
        for id_, near in result.neighbours.items()
    ]
    write_rows(out.neighbours, [dict(row) for row in rows])
    return result


def merged(folders: Sequence[SynthFolder]) -> Iterator[TaskRecord]:
    """The accepted tasks of several folders, in one order whatever theirs."""
    rows = [pair for folder in folders for pair in read_numbered(folder.accepted)]
    for _, record in sorted(rows, key=lambda pair: (pair[0], pair[1].id)):
        yield record


def nearest_first(neighbours: Mapping[str, Neighbour], num: int) -> list[tuple[str, Neighbour]]:
    """The tasks nearest to an evaluation task, matches first."""
    ordered = sorted(neighbours.items(), key=lambda item: (item[1].match is None, -item[1].similarity))
    return ordered[:num]
