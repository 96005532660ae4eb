"""Parquet in the public set's form: ``code``, ``ops``, ``data_source``; and what we know beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.record import TaskRecord

COLUMNS: tuple[tuple[str, str], ...] = (
    ("code", "string"),
    ("ops", "list"),
    ("data_source", "string"),
    ("hash", "string"),
    ("seeds", "list"),
    ("split", "string"),
    ("tier", "string"),
    ("family", "string"),
    ("dtype", "string"),
    ("sizes", "string"),
    ("inputs", "list"),
    ("outputs", "list"),
    ("by_mode", "bool"),
    ("eager_us", "double"),
    ("eager_spread", "double"),
    ("compile_us", "double"),
    ("compile_spread", "double"),
    ("floor_us", "double"),
    ("headroom", "double"),
    ("vendor_share", "double"),
    ("graph_breaks", "int64"),
    ("peak_bytes", "int64"),
    ("input_bytes", "int64"),
    ("flops", "int64"),
    ("nearest", "string"),
    ("similarity", "double"),
    ("cluster", "string"),
    ("graph", "string"),
    ("margins", "string"),
    ("judge_seconds", "double"),
    ("playbook_reward", "double"),
    ("device", "string"),
    ("versions", "string"),
)
"""Name and kind of each column. ``sizes``, ``margins`` and ``versions`` are JSON objects as text."""


@dataclass(frozen=True)
class Origin:
    """Where and by what a set was made.

    Attributes:
        device: name of the device that times were taken on.
        versions: of torch, python, cuda_agent and the rest.
    """

    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def row_of(record: TaskRecord, origin: Origin) -> dict[str, Any]:
    """One row; what was not measured is ``None``."""
    facts = record.facts
    abstract, eager, compiled = (facts.get(name, {}) for name in ("abstract", "eager", "compiled"))
    labels = facts.get("labels", {})
    return {
        "code": record.code,
        "ops": list(record.ops),
        "data_source": record.data_source,
        "hash": record.id,
        "seeds": list(record.seeds),
        "split": labels.get("split"),
        "tier": labels.get("tier"),
        "family": labels.get("family"),
        "dtype": record.dtype,
        "sizes": json.dumps({name: vars(size) for name, size in record.sizes.items()}),
        "inputs": abstract.get("inputs"),
        "outputs": abstract.get("outputs"),
        "by_mode": record.by_mode,
        "eager_us": eager.get("median_us"),
        "eager_spread": eager.get("spread"),
        "compile_us": compiled.get("median_us"),
        "compile_spread": compiled.get("spread"),
        "floor_us": facts.get("floor", {}).get("floor_us"),
        "headroom": labels.get("headroom"),
        "vendor_share": compiled.get("vendor_share"),
        "graph_breaks": compiled.get("graph_breaks"),
        "peak_bytes": eager.get("peak_bytes"),
        "input_bytes": abstract.get("input_bytes"),
        "flops": abstract.get("flops"),
        "nearest": labels.get("nearest"),
        "similarity": labels.get("similarity"),
        "cluster": labels.get("cluster"),
        "graph": labels.get("graph"),
        "margins": json.dumps(facts.get("margins", {})),
        "judge_seconds": facts.get("judge", {}).get("seconds"),
        "playbook_reward": facts.get("judge", {}).get("reward"),
        "device": origin.device,
        "versions": json.dumps(dict(origin.versions)),
    }


def write_parquet(path: Path, records: Sequence[TaskRecord], origin: Origin) -> None:
    """Write a set, compressed, at once or not at all.

    Raises:
        UsageError: pyarrow is missing, or the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "writing Parquet needs pyarrow", "Install it: pip install 'cuda-agent[data]'."
        ) from None
    kinds = {
        "string": pyarrow.string(),
        "list": pyarrow.list_(pyarrow.string()),
        "bool": pyarrow.bool_(),
        "double": pyarrow.float64(),
        "int64": pyarrow.int64(),
    }
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS])
    rows = [row_of(record, origin) for record in records]
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(
            pyarrow.Table.from_pylist(rows, schema=schema),
            temporary,
            compression="zstd",
            compression_level=12,
        )
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}", "Name another --out.") from None
