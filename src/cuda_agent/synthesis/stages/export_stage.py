"""The export stage: kept tasks to Parquet and data card."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.export.card import Making, write_card
from cuda_agent.synthesis.export.table import Origin, write_parquet
from cuda_agent.synthesis.jsonl import read_rows
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.stages.folder import SynthFolder
from cuda_agent.synthesis.target import Target

_NUM_NEAREST = 20


def kept_records(folder: SynthFolder) -> list[TaskRecord]:
    """The tasks that ``dedupe`` left.

    Raises:
        UsageError: there are none.
    """
    records = [TaskRecord.from_dict(row) for row in read_rows(folder.kept)]
    if not records:
        raise UsageError(f"{folder.kept} holds no task", "Run cuda-agent synth dedupe first.")
    return records


def run_export(
    folder: SynthFolder, out: Path, target: Target, *, sources: Sequence[SynthFolder] = (), screened: int = 0
) -> tuple[Path, Path]:
    """Write ``out`` (Parquet) and the card beside it.

    Args:
        folder: holds ``kept``, ``dropped``, ``neighbours``.
        out: the Parquet file.
        target: that times were taken on.
        sources: folders whose filter counts belong to the set; this one when left out.
        screened: evaluation tasks screened against.

    Returns:
        The Parquet file and the card.
    """
    origin = origin_of(target)
    margins = {
        row["record"]["code"]: row.get("margins", {})
        for source in (sources or (folder,))
        for row in read_rows(source.accepted)
    }
    records = [
        dataclasses.replace(record, facts={**record.facts, "margins": margins.get(record.code, {})})
        for record in kept_records(folder)
    ]
    write_parquet(out, records, origin)
    making = _making(folder, sources or (folder,), target, origin, screened)
    return out, write_card(out.parent, records, making)


def _making(
    folder: SynthFolder, sources: Sequence[SynthFolder], target: Target, origin: Origin, screened: int
) -> Making:
    refused = Counter(row["predicate"] for source in sources for row in read_rows(source.rejected))
    num_accepted = sum(1 for source in sources for _ in read_rows(source.accepted))
    near = [
        (row["id"], row["nearest"], row["similarity"], row["match"] or "")
        for row in read_rows(folder.neighbours)
    ]
    near.sort(key=lambda row: (not row[3], -row[2]))
    return Making(
        origin=origin,
        refused=refused,
        num_filtered=num_accepted + refused.total(),
        dropped=Counter(row["reason"] for row in read_rows(folder.dropped)),
        num_references=screened,
        nearest=near[:_NUM_NEAREST],
        target=target.name,
    )


def origin_of(target: Target) -> Origin:
    """The device and versions at hand."""
    import torch

    from cuda_agent.backends.facts import cpu_identity
    from cuda_agent.config import JudgeConfig
    from cuda_agent.judge.devices import choose_place, versions

    if target.device == "cpu":
        return Origin(cpu_identity().rsplit(" ", 1)[0], versions(choose_place("cpu", JudgeConfig()), None))
    from cuda_agent.backends.cuda import list_gpus

    driver = next((gpu["driver_version"] for gpu in list_gpus()), None)
    return Origin(torch.cuda.get_device_name(), versions(choose_place("cuda", JudgeConfig()), driver))
