"""Which tasks of a set stay, and where they go: caps by share, tiers, split by cluster. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from cuda_agent.synthesis.dedupe import graph
from cuda_agent.synthesis.families import Family, is_held_out, main_family
from cuda_agent.synthesis.record import TaskRecord

VENDOR_BOUND = 0.5
"""Share of time in a vendor's library from which a task is bound by it."""
STARTER_US = (1e3, 5e3)
STARTER_INPUT_BYTES = 1 << 30
_HARD = frozenset({Family.LINALG, Family.FFT, Family.SORT, Family.RECURRENT})
_TEST_SHARE = 0.05


class Tier(StrEnum):
    """How hard a task is to begin with."""

    STARTER = "starter"
    """Eager takes 1 to 5 ms, inputs of at most 1 GiB, one kernel can do it."""
    MAIN = "main"
    HARD = "hard"
    """LAPACK, FFT, sorting, recurrences, complex numbers, shapes that depend on values."""


class Split(StrEnum):
    """Part of the set."""

    TRAIN = "train"
    TEST = "test"
    """Clusters of graphs that training does not hold."""
    HELD_OUT = "held_out"
    """Operators that training does not hold at all (:data:`cuda_agent.synthesis.families.HELD_OUT`)."""


@dataclass(frozen=True)
class Caps:
    """Largest shares of a set.

    Attributes:
        family: of one family of operators.
        vendor: of tasks bound by a vendor's library.
        headroom: least compile time over the memory floor that counts as room.
        headroom_share: least share of tasks with such room, among those where it is known.
        per_cluster: tasks of one cluster (a graph without sizes and hyper-parameters).
    """

    family: float = 0.25
    vendor: float = 0.30
    headroom: float = 1.15
    headroom_share: float = 0.40
    per_cluster: int = 3


def rows_of(record: TaskRecord) -> Sequence[graph.Row]:
    """The normalised graph of a filtered task."""
    facts = record.facts
    rows: Sequence[graph.Row] = facts.get("abstract", {}).get("graph") or facts.get("traced", {}).get(
        "graph", ()
    )
    return rows


def tier_of(record: TaskRecord) -> Tier:
    """The tier of a filtered task."""
    abstract = record.facts.get("abstract", {})
    if main_family(record.ops) in _HARD or "why" in abstract or _is_complex(record):
        return Tier.HARD
    eager = record.facts.get("eager", {}).get("median_us", math.inf)
    compiled = record.facts.get("compiled", {})
    simple = compiled.get("vendor_share", 0.0) < VENDOR_BOUND and not compiled.get("graph_breaks", 0)
    small = abstract.get("input_bytes", math.inf) <= STARTER_INPUT_BYTES
    in_time = STARTER_US[0] <= eager <= STARTER_US[1]
    return Tier.STARTER if simple and small and in_time and len(record.ops) <= 3 else Tier.MAIN


def _is_complex(record: TaskRecord) -> bool:
    return any("complex" in str(dtype) for *_, outputs, _ in rows_of(record) for _, dtype in outputs)


def split_of(record: TaskRecord) -> Split:
    """The part of the set a task belongs to; tasks of one cluster share it."""
    if is_held_out(record.ops):
        return Split.HELD_OUT
    cluster = graph.cluster_key(rows_of(record))
    draw = int(hashlib.sha256(f"split {cluster}".encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return Split.TEST if draw < _TEST_SHARE else Split.TRAIN


def headroom(record: TaskRecord) -> float | None:
    """torch.compile's time over the memory floor: how much a kernel could still win; ``None``: not known."""
    compiled = record.facts.get("compiled", {}).get("median_us")
    floor = record.facts.get("floor", {}).get("floor_us")
    return compiled / floor if compiled and floor else None


# -- caps ---------------------------------------------------------------------------------------


def capped(records: Sequence[TaskRecord], caps: Caps) -> tuple[list[TaskRecord], Counter[str]]:
    """The tasks that stay under the caps, in their order, and how many each cap removed.

    Of too many alike, those with the least headroom go first, then by hash: the choice does not depend on the
    order in which tasks were made.
    """
    kept = sorted(records, key=_worth, reverse=True)
    removed: Counter[str] = Counter()
    kept = _few_alike(kept, lambda r: graph.cluster_key(rows_of(r)), caps.per_cluster, removed)
    before = -1
    while len(kept) != before:
        before = len(kept)
        for family in Family:
            kept = _share(kept, partial(_is_of, family), caps.family, removed, f"family {family}")
        kept = _share(kept, _is_vendor_bound, caps.vendor, removed, "vendor-bound")
        little = 1 - caps.headroom_share
        kept = _share(kept, lambda r: _has_little(r, caps.headroom), little, removed, "little headroom")
    stays = {record.id for record in kept}
    return [record for record in records if record.id in stays], removed


def _worth(record: TaskRecord) -> tuple[float, str]:
    return headroom(record) or 0.0, record.id


def _few_alike(
    records: Sequence[TaskRecord], key: Callable[[TaskRecord], str], most: int, removed: Counter[str]
) -> list[TaskRecord]:
    seen: Counter[str] = Counter()
    kept = []
    for record in records:
        seen[key(record)] += 1
        if seen[key(record)] <= most:
            kept.append(record)
    removed["cluster"] += len(records) - len(kept)
    return kept


def _share(
    records: list[TaskRecord],
    is_one: Callable[[TaskRecord], bool],
    share: float,
    removed: Counter[str],
    name: str,
) -> list[TaskRecord]:
    """Cut the tasks of one kind to a share of what is left then."""
    ones = [record for record in records if is_one(record)]
    others = len(records) - len(ones)
    most = math.floor(share * others / (1 - share)) if share < 1 else len(ones)
    if len(ones) <= max(1, most):  # one of a kind is no surplus of it
        return records
    dropped = {record.id for record in ones[max(1, most) :]}
    removed[name] += len(dropped)
    return [record for record in records if record.id not in dropped]


def _is_of(family: Family, record: TaskRecord) -> bool:
    return main_family(record.ops) is family


def _is_vendor_bound(record: TaskRecord) -> bool:
    return float(record.facts.get("compiled", {}).get("vendor_share", 0.0)) >= VENDOR_BOUND


def _has_little(record: TaskRecord, least: float) -> bool:
    room = headroom(record)
    return room is not None and room < least


def labelled(record: TaskRecord, extra: Mapping[str, Any]) -> TaskRecord:
    """The task with its tier, split, family and cluster among its facts."""
    labels = {
        "tier": str(tier_of(record)),
        "split": str(split_of(record)),
        "family": str(main_family(record.ops)),
        "cluster": graph.cluster_key(rows_of(record)),
        "graph": graph.graph_key(rows_of(record)),
        "headroom": headroom(record),
        **extra,
    }
    return dataclasses.replace(record, facts={**record.facts, "labels": labels})
