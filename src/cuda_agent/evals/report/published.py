"""The published table (arXiv 2602.24286 v1, Tables 1 and 2), as package data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

SUBSETS = ("overall", "level1", "level2", "level3", "ablations")


@dataclass(frozen=True)
class PublishedRow:
    """One row.

    Attributes:
        subset: of :data:`SUBSETS`.
        model: as the paper names it.
        pass_rate, faster_eager, faster_compile: shares, 0 to 1.
        geomean_eager, geomean_compile: over correct solutions.
    """

    subset: str
    model: str
    pass_rate: float
    faster_eager: float
    faster_compile: float
    geomean_eager: float
    geomean_compile: float


@dataclass(frozen=True)
class Published:
    """The table with where it comes from and under what it was measured."""

    source: str
    note: str
    device: str
    track: str
    rows: tuple[PublishedRow, ...]


def published() -> Published:
    """Read the table."""
    text = resources.files("cuda_agent.evals.report").joinpath("published_results.json").read_text("utf-8")
    data = json.loads(text)
    rows = tuple(
        PublishedRow(subset, model, v[0] / 100, v[1] / 100, v[2] / 100, v[3], v[4])
        for subset in SUBSETS
        for model, v in data[subset].items()
    )
    return Published(data["source"], data["note"], data["device"], data["track"], rows)
