"""The record of one episode: turns in order, append-only, one JSON object a line.

Sampled tokens are never re-derived from text: ids, mask, log-probabilities and policy version travel
together (docs/architecture.md).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError


class Ending(StrEnum):
    """Why an episode ended."""

    FINISHED = "finished"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    TIME_LIMIT = "time_limit"
    FORMAT_ERRORS = "format_errors"
    POLICY_ERROR = "policy_error"
    SANDBOX_ERROR = "sandbox_error"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class ToolCall:
    """One action: a tool's name and its arguments."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Observation:
    """What a tool answered.

    Attributes:
        call_id: id of the call answered; empty for an answer to a malformed action.
        text: what the policy reads.
        is_error: the call was malformed or the tool failed.
        seconds: wall time of the tool.
    """

    call_id: str
    text: str
    is_error: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class TokenRecord:
    """Token space of one turn, where a local model made it.

    Attributes:
        prompt_ids: ids appended to the context since the previous turn (not trained on).
        completion_ids: ids sampled in this turn (the action mask is 1 here, 0 on prompt_ids).
        logprobs: the sampler's log-probability of each completion id; same length.
        policy_version: version of the weights that sampled them.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: str


@dataclass(frozen=True)
class Usage:
    """Cost of one turn: tokens, and money where a price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True)
class Turn:
    """One action of the policy and what came back.

    Attributes:
        index: 0-based.
        text: the policy's words (thought), tool calls excluded.
        calls: actions, possibly none.
        observations: answers, in the order of ``calls`` (then those to malformed actions).
        malformed: messages about actions that could not be parsed; counted as format errors.
        tokens: token space, where a local model made the turn.
        usage: tokens and cost, where the policy reports them.
        seconds: wall time of the whole turn.
    """

    index: int
    text: str
    calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    malformed: tuple[str, ...] = ()
    tokens: TokenRecord | None = None
    usage: Usage | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Header:
    """First line of a trajectory file.

    Attributes:
        task_hash, policy, backend, track: what the episode is about.
        system, prompt: first two messages the policy sees.
        settings: resolved configuration.
    """

    task_hash: str
    policy: str
    backend: str
    track: str
    system: str
    prompt: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """A whole episode. ``ending`` is ``None`` while it runs, or when it died."""

    header: Header
    turns: tuple[Turn, ...] = ()
    ending: Ending | None = None
    ending_detail: str = ""


class TrajectoryWriter:
    """Appends to a JSONL file; every line is flushed to disk before the next turn starts."""

    def __init__(self, path: Path, header: Header, *, resume: bool = False) -> None:
        self.path = path
        self._file = path.open("a" if resume else "w", encoding="utf-8")
        if not resume:
            self._write({"type": "header", **dataclasses.asdict(header)})

    def turn(self, turn: Turn) -> None:
        """Append one turn."""
        self._write({"type": "turn", **dataclasses.asdict(turn)})

    def end(self, ending: Ending, detail: str = "") -> None:
        """Append the ending and close."""
        self._write({"type": "end", "ending": str(ending), "detail": detail})
        self.close()

    def close(self) -> None:
        """Close the file; may run twice."""
        if not self._file.closed:
            self._file.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_trajectory(path: Path) -> Trajectory:
    """Read a trajectory file; a last line cut off by a kill is dropped.

    Raises:
        UsageError: no such file, or not a trajectory.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name a trajectory file.") from None
    records = []
    for number, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise UsageError(f"{path}: line {number + 1} is not JSON") from None
    if not records or records[0].get("type") != "header":
        raise UsageError(f"{path} is not a trajectory", "Its first line must be a header.")
    turns = tuple(_turn(r) for r in records if r["type"] == "turn")
    # A resumed episode writes a second ending: the last one counts.
    ends = [r for r in records if r["type"] == "end"]
    header = Header(**{k: v for k, v in records[0].items() if k != "type"})
    if not ends:
        return Trajectory(header, turns)
    return Trajectory(header, turns, Ending(ends[-1]["ending"]), ends[-1]["detail"])


def _turn(record: Mapping[str, Any]) -> Turn:
    tokens, usage = record["tokens"], record["usage"]
    return Turn(
        index=record["index"],
        text=record["text"],
        calls=tuple(ToolCall(**c) for c in record["calls"]),
        observations=tuple(Observation(**o) for o in record["observations"]),
        malformed=tuple(record["malformed"]),
        tokens=None
        if tokens is None
        else TokenRecord(
            prompt_ids=tuple(tokens["prompt_ids"]),
            completion_ids=tuple(tokens["completion_ids"]),
            logprobs=tuple(tokens["logprobs"]),
            policy_version=tokens["policy_version"],
        ),
        usage=None if usage is None else Usage(**usage),
        seconds=record["seconds"],
    )
