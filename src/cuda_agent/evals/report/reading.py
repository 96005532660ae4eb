"""An evaluation's folder read into records. A last line cut off by a kill is dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.evals.metrics_records import EvalRun, attempt_of, latest_attempts, task_of


def read_run(root: Path) -> EvalRun:
    """Read eval.json, tasks.jsonl and attempts.jsonl.

    Raises:
        UsageError: the folder is no evaluation, or a file is damaged.
    """
    settings = _object(root / "eval.json", root)
    tasks = tuple(task_of(line) for line in _lines(root / "tasks.jsonl", needed=True))
    attempts = latest_attempts([attempt_of(line) for line in _lines(root / "attempts.jsonl", needed=False)])
    return EvalRun(root.resolve().name, settings, tasks, attempts)


def _object(path: Path, root: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"{root} is no evaluation", "Name a folder that cuda-agent eval wrote.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "Run the evaluation again.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no object", "Run the evaluation again.")
    return data


def _lines(path: Path, *, needed: bool) -> Iterator[Mapping[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        if not needed:
            return
        raise UsageError(f"cannot read {path}: {error.strerror}", "Run the evaluation again.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise UsageError(f"{path}: line {number} is not JSON", "Run the evaluation again.") from None
        if not isinstance(record, dict) or "id" not in record:
            raise UsageError(f"{path}: line {number} has no id", "Run the evaluation again.")
        yield record
