"""Tasks that are too near to an evaluation task, and how the line is drawn.

Three tests, any one drops a task:

- **tree**: the paper's. Similarity of the ``Model`` classes' syntax trees above 0.9.
- **graph**: the same normalised graph (operators, edges, ranks, hyper-parameters), whatever the spelling.
- **signature**: the same operators with the same hyper-parameters and ranks, in any order or wiring.

Sizes do not excuse a graph or signature of two or more computing operators: a fused kernel learnt on one size
solves the other. A single operator is no secret of a benchmark: it is dropped only when its largest tensor
also has about as many elements (within a factor of 4); at another rank or another size it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cuda_agent.synthesis.dedupe import graph
from cuda_agent.synthesis.dedupe.similarity import THRESHOLD, model_class, parts_of, similarity, upper_bound

SIZE_FACTOR = 4.0
"""Single operators within this factor of elements are the same task."""


class Match(StrEnum):
    """By which test a task is too near."""

    TREE = "tree"
    GRAPH = "graph"
    SIGNATURE = "signature"


@dataclass(frozen=True)
class Reference:
    """An evaluation task as the tests see it.

    Attributes:
        id: ``level1/19``.
        parts: structural statements of its ``Model`` class.
        rows: its normalised graph; empty where it could not be traced.
    """

    id: str
    parts: tuple[Any, ...]
    rows: Sequence[graph.Row] = ()


@dataclass(frozen=True)
class Neighbour:
    """The nearest evaluation task.

    Attributes:
        id: of the evaluation task, empty where there is none.
        similarity: of the syntax trees, 0 to 1.
        match: by which test it is too near; ``None``: it is not.
    """

    id: str
    similarity: float
    match: Match | None = None


def reference(id_: str, code: str, rows: Sequence[graph.Row] = ()) -> Reference:
    """An evaluation task from its source and graph."""
    found = model_class(code)
    return Reference(id_, parts_of(found) if found is not None else (), rows)


class Screen:
    """Holds tasks against an evaluation set."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self._references = references
        self._graphs = _index(references, graph.graph_key)
        self._signatures = _index(references, graph.signature_key)

    def nearest(self, code: str, rows: Sequence[graph.Row]) -> Neighbour:
        """The nearest evaluation task by tree, or the one that a test calls the same."""
        best = self._nearest_tree(code)
        if best.similarity > THRESHOLD:
            return Neighbour(best.id, best.similarity, Match.TREE)
        for match, index, key in (
            (Match.GRAPH, self._graphs, graph.graph_key),
            (Match.SIGNATURE, self._signatures, graph.signature_key),
        ):
            same = next((r for r in index.get(key(rows), ()) if _alike_in_size(rows, r.rows)), None)
            if rows and same is not None:
                return Neighbour(same.id, best.similarity, match)
        return best

    def _nearest_tree(self, code: str) -> Neighbour:
        found = model_class(code)
        parts = parts_of(found) if found is not None else ()
        best = Neighbour("", 0.0)
        bounds = [(upper_bound(parts, r.parts), r) for r in self._references]
        for bound, candidate in sorted(bounds, key=lambda pair: -pair[0]):
            if bound <= best.similarity:
                break
            value = similarity(parts, candidate.parts)
            if value > best.similarity:
                best = Neighbour(candidate.id, value)
        return best


def _index(references: Sequence[Reference], key: Any) -> Mapping[str, list[Reference]]:
    found: dict[str, list[Reference]] = {}
    for item in references:
        if item.rows:
            found.setdefault(key(item.rows), []).append(item)
    return found


def _alike_in_size(rows: Sequence[graph.Row], other: Sequence[graph.Row]) -> bool:
    if graph.num_computing(rows) > 1:
        return True
    ours, theirs = graph.largest(rows), graph.largest(other)
    return ours <= SIZE_FACTOR * theirs and theirs <= SIZE_FACTOR * ours
