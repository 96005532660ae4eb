"""The data card of a set: what is in it, how it was filtered, with pictures beside it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.dedupe.contamination import SIZE_FACTOR
from cuda_agent.synthesis.dedupe.similarity import THRESHOLD
from cuda_agent.synthesis.export.pictures import bar_chart, histogram
from cuda_agent.synthesis.export.table import Origin
from cuda_agent.synthesis.families import HELD_OUT, main_family
from cuda_agent.synthesis.filters.predicates import PREDICATES
from cuda_agent.synthesis.record import TaskRecord

_NUM_OPS_SHOWN = 40


@dataclass(frozen=True)
class Making:
    """How a set came about.

    Attributes:
        origin: device and versions.
        refused: tasks refused by the filters, by predicate.
        num_filtered: tasks that reached the filters.
        dropped: tasks taken out afterwards, by reason.
        num_references: evaluation tasks screened against.
        nearest: (task, evaluation task, similarity, match) of the nearest.
        target: name of the target.
    """

    origin: Origin = field(default_factory=Origin)
    refused: Mapping[str, int] = field(default_factory=dict)
    num_filtered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    num_references: int = 0
    nearest: Sequence[tuple[str, str, float, str]] = ()
    target: str = ""


def write_card(folder: Path, records: Sequence[TaskRecord], making: Making) -> Path:
    """Write ``card.md`` and its pictures.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures(records).items():
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
        path = folder / "card.md"
        path.write_text(card(records, making), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", "Name another --out.") from None
    return path


def pictures(records: Sequence[TaskRecord]) -> dict[str, str]:
    """The card's pictures by name, as SVG; those without data are left out."""
    kinds = Counter(record.data_source for record in records)
    families = Counter(str(main_family(record.ops)) for record in records)
    eager = [t for r in records if (t := r.facts.get("eager", {}).get("median_us"))]
    floors = [
        r.facts["floor"]["floor_us"] / t
        for r in records
        if "floor" in r.facts and (t := r.facts.get("eager", {}).get("median_us"))
    ]
    found = {
        "op-counts": bar_chart("Operators in a task", sorted((k, float(n)) for k, n in kinds.items())),
        "families": bar_chart("Families of operators", [(k, float(n)) for k, n in families.most_common()]),
    }
    if eager:
        found["times"] = histogram("Eager time", eager, scale=1e-3, unit="ms")
    if floors:
        found["floor"] = histogram("Memory floor over eager time", floors)
    return found


def card(records: Sequence[TaskRecord], making: Making) -> str:
    """The card as Markdown."""
    sections = [
        _contents(records, making),
        *(f"![{name}]({name}.svg)" for name in pictures(records)),
        _filters(making),
        _decontamination(making),
        _columns(),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _contents(records: Sequence[TaskRecord], making: Making) -> str:
    ops = Counter(op for record in records for op in record.ops)
    num = len(records) or 1
    eager = [t for r in records if (t := r.facts.get("eager", {}).get("median_us"))]
    long = sum(len(r.ops) >= 3 for r in records)
    transformers = sum(r.data_source == "transformers" for r in records)
    half = sum(r.dtype != "float32" for r in records)
    splits = Counter(r.facts.get("labels", {}).get("split", "") for r in records)
    tiers = Counter(r.facts.get("labels", {}).get("tier", "") for r in records)
    room = [h for r in records if (h := r.facts.get("labels", {}).get("headroom"))]
    rows: list[tuple[str, Any]] = [
        ("tasks", len(records)),
        ("target", making.target),
        ("device", making.origin.device or "not recorded"),
        ("versions", ", ".join(f"{k} {v}" for k, v in making.origin.versions.items()) or "not recorded"),
        ("distinct operators", len(ops)),
        ("three operators or more", f"{100 * long / num:.1f} %"),
        ("of transformers", f"{100 * transformers / num:.1f} %"),
        ("half precision", f"{100 * half / num:.1f} %"),
        ("splits", ", ".join(f"{k} {n}" for k, n in sorted(splits.items()))),
        ("tiers", ", ".join(f"{k} {n}" for k, n in sorted(tiers.items()))),
        ("eager time, median", f"{statistics.median(eager) / 1e3:.3g} ms" if eager else "not measured"),
        ("compile over floor, median", f"{statistics.median(room):.3g}" if room else "not measured"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    common = ", ".join(f"`{op}` {n}" for op, n in ops.most_common(_NUM_OPS_SHOWN))
    return f"# Data card\n\n| what | value |\n| --- | --- |\n{table}\n\nCommonest operators: {common}."


def _filters(making: Making) -> str:
    if not making.num_filtered:
        return ""
    left, rows = making.num_filtered, []
    for predicate in PREDICATES:
        refused = making.refused.get(predicate.name, 0)
        rows.append(f"| {predicate.name} | {left} | {refused} | {predicate.threshold} | {predicate.reason} |")
        left -= refused
    head = "| filter | reached it | refused | threshold | reason |\n| --- | --- | --- | --- | --- |"
    return "\n".join(["## Filters", "", head, *rows])


def _decontamination(making: Making) -> str:
    lines = ["## Duplicates and decontamination", ""]
    if making.num_references:
        lines.append(
            f"Screened against {making.num_references} evaluation tasks: syntax trees of `Model` more than "
            f"{THRESHOLD:g} alike, the same normalised graph, or the same operators with the same "
            "hyper-parameters are out, whatever the sizes; a single operator only within a factor of "
            f"{SIZE_FACTOR:g} of the same size and at the same rank."
        )
    else:
        lines.append("**Not screened against any evaluation set.**")
    if making.dropped:
        lines += ["", "| taken out | tasks |", "| --- | --- |"]
        lines += [f"| {reason} | {num} |" for reason, num in sorted(making.dropped.items())]
    if making.nearest:
        lines += ["", "| task | nearest | similarity | taken out by |", "| --- | --- | --- | --- |"]
        lines += [f"| {i} | {of} | {value:.3f} | {match} |" for i, of, value, match in making.nearest]
    held = ", ".join(f"`{kin}` ({what})" for kin, what in HELD_OUT.items())
    lines += ["", f"Operators held out of training: {held}."]
    return "\n".join(lines)


def _columns() -> str:
    return (
        "## Columns\n\nThe public ones: `code`, `ops`, `data_source`. Ours: see "
        "`cuda_agent.synthesis.export.table`. `sizes` lists each size constant with its small and shipped "
        "value: `cuda_agent.synthesis.scale.with_sizes` writes either form. Columns without a value were not "
        "measured."
    )
