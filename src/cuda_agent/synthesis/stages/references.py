"""Evaluation tasks with their graphs, traced once and kept: what a set is screened against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.synthesis.dedupe.contamination import Reference, reference
from cuda_agent.synthesis.filters.client import Client, TaskFailed
from cuda_agent.synthesis.jsonl import Appender, read_rows
from cuda_agent.tasks.taskset import TaskEntry, load_taskset

_LIMIT_S = 60.0


def load_references(source: str, *, cache: Path, inductor: Path) -> list[Reference]:
    """The tasks of an evaluation set, each with its graph where it can be traced on fake tensors.

    Args:
        source: folder, Parquet, JSON lines, or ``kernelbench`` (the hub's set).
        cache: JSON lines of graphs by task hash, read and written.
        inductor: folder that the tracing worker may write to.

    Raises:
        UsageError: no such set.
    """
    entries = load_taskset(source)
    known: dict[str, Any] = {row["hash"]: row["graph"] for row in read_rows(cache) if "hash" in row}
    missing = [entry for entry in entries if entry.task.hash not in known]
    if missing:
        known |= _traced(missing, cache, inductor)
    return [reference(entry.id, entry.task.code, known.get(entry.task.hash, ())) for entry in entries]


def _traced(entries: Sequence[TaskEntry], cache: Path, inductor: Path) -> dict[str, Any]:
    inductor.mkdir(parents=True, exist_ok=True)
    client = Client("cpu", num_threads=1, cache=inductor)
    found: dict[str, Any] = {}
    try:
        with Appender(cache) as file:
            for entry in entries:
                found[entry.task.hash] = _graph(client, entry.task.code)
                file.append({"id": entry.id, "hash": entry.task.hash, "graph": found[entry.task.hash]})
    finally:
        client.close()
    return found


def _graph(client: Client, code: str) -> Any:
    """The graph's rows; empty where the task does not run on fake tensors."""
    try:
        client.open(code, limit_s=_LIMIT_S)
        return client.measure("abstract", limit_s=_LIMIT_S).get("graph", [])
    except TaskFailed:
        return []
