"""What the page shows of one attempt: reference, kernels, verdict in full, the trajectory turn by turn.

All of it comes from candidates and models: it is data, never markup. The page gets it as compressed JSON
and puts it in as text.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from cuda_agent.errors import CudaAgentError
from cuda_agent.evals.metrics_records import EvalAttempt, EvalRun
from cuda_agent.evals.run_files import EvalFolder
from cuda_agent.trajectory import Turn, read_trajectory

MAX_TEXT = 20_000
MAX_FILE = 200_000
MAX_SAMPLES = 200


def details(root: Path, run: EvalRun, attempt: EvalAttempt) -> dict[str, Any]:
    """Everything about one attempt, plain JSON types; parts that are not on disk are absent."""
    evaluation = EvalFolder(root)
    folder = evaluation.attempt_folder(attempt.id, attempt.sample)
    task = next((t for t in run.tasks if t.id == attempt.id), None)
    found: dict[str, Any] = {
        "id": attempt.id,
        "sample": attempt.sample,
        "ending": attempt.ending,
        "uncounted": attempt.uncounted_reason(),
        "baselines": dict(task.baselines or {}) if task else {},
        "degenerate": dict(task.degenerate or {}) if task else {},
        "reference": _text(evaluation.task_folder(attempt.id) / "model.py"),
        "files": _files(folder / "candidate"),
    }
    for name, result in (("best", attempt.best), ("last", attempt.last)):
        found[name] = None if result is None else _result(json.loads(result.to_json()))
    return found | _trajectory(folder / "trajectory.jsonl")


def packed(data: Any) -> str:
    """JSON, gzip, base64: letters that need no escaping anywhere in a page."""
    raw = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")


def _result(result: dict[str, Any]) -> dict[str, Any]:
    for name, value in result.items():
        if name.endswith("_us") and isinstance(value, dict) and "samples" in value:
            value["samples"] = value["samples"][:MAX_SAMPLES]
    return result


def _trajectory(path: Path) -> dict[str, Any]:
    try:
        trajectory = read_trajectory(path)
    except (CudaAgentError, KeyError, TypeError, ValueError, AttributeError):
        return {"turns": None}
    header = trajectory.header
    return {
        "system": _cut(header.system),
        "prompt": _cut(header.prompt),
        "turns": [_turn(turn) for turn in trajectory.turns],
        "ending_detail": _cut(trajectory.ending_detail),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "text": _cut(turn.text),
        "calls": [
            {"name": c.name, "arguments": {k: _cut(_words(v)) for k, v in c.arguments.items()}}
            for c in turn.calls
        ],
        "observations": [
            {"text": _cut(o.text), "error": o.is_error, "seconds": o.seconds} for o in turn.observations
        ],
        "malformed": [_cut(m) for m in turn.malformed],
        "tokens": None if turn.usage is None else [turn.usage.prompt_tokens, turn.usage.completion_tokens],
        "seconds": turn.seconds,
    }


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[... {len(text) - limit} characters left out ...]\n{text[-limit // 2 :]}"


def _text(path: Path) -> str | None:
    try:
        return _cut(path.read_text(encoding="utf-8", errors="replace"), MAX_FILE)
    except OSError:
        return None


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    texts = {p.relative_to(folder).as_posix(): _text(p) for p in paths[:100]}
    return {name: text for name, text in texts.items() if text is not None}
