"""Plays the actions of a recorded trajectory, or of a script, whatever the tools answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.output import writable
from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role, ToolSpec
from cuda_agent.errors import UsageError
from cuda_agent.trajectory import ToolCall, read_trajectory

_log = logging.getLogger(__name__)


class ReplayPolicy:
    """Acts as recorded; finished when the recording ends.

    Args:
        path: a trajectory, or a script: a JSON list (or one JSON object a line) of
            ``{"text": "...", "calls": [{"name": "Bash", "arguments": {"command": "ls"}}]}``.

    Raises:
        UsageError: no such file, or neither of both.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._task_hash, self._actions = read_actions(path)
        self._next = 0

    @property
    def name(self) -> str:
        """``replay:FILE``."""
        return f"replay:{self._path}"

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        """Begin at the first action, or after those that a resumed history holds already."""
        self._next = sum(message.role is Role.ASSISTANT for message in history)
        if self._task_hash and self._task_hash != context.task.hash:
            _log.warning(
                "%s was recorded on task %s, not on this one (%s): its kernels may not fit",
                self._path,
                self._task_hash,
                context.task.hash,
            )

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:  # noqa: ARG002
        """The next recorded action."""
        if self._next >= len(self._actions):
            return Action("The recording ends here.", context_tokens=0)
        self._next += 1
        return self._actions[self._next - 1]

    def close(self) -> None:
        """Nothing to free."""


def read_actions(path: Path) -> tuple[str, list[Action]]:
    """Task hash (empty for a script) and actions of a trajectory or script file.

    Raises:
        UsageError: no such file, or neither of both.
    """
    steps = read_steps(path)
    if steps and steps[0].get("type") == "header":
        trajectory = read_trajectory(path)
        actions = [Action(t.text, t.calls, t.malformed, context_tokens=0) for t in trajectory.turns]
        # Ids of a file put together by hand may repeat; the history needs them unique.
        return trajectory.header.task_hash, [_with_ids(a, n) for n, a in enumerate(actions)]
    return "", [_with_ids(scripted_action(step, path), n) for n, step in enumerate(steps)]


def read_steps(path: Path) -> list[Mapping[str, Any]]:
    """The JSON objects of a file: one list, or one object a line (a last line cut off is dropped).

    Raises:
        UsageError: no such file, or something else in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Name a trajectory or a script.") from None
    if text.lstrip().startswith("["):
        steps = _json(text, f"{path}")
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        steps = [_json(line, f"{path}: line {n}") for n, line in enumerate(lines[:-1], 1)]
        steps += _last(lines, bool(steps), path)
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise UsageError(
            f"{path} is neither a trajectory nor a script", "A script is a JSON list of actions."
        )
    return steps


def scripted_action(step: Mapping[str, Any], path: Path) -> Action:
    """One action of a script.

    Raises:
        UsageError: it has another form.
    """
    calls = step.get("calls", [])
    well_formed = isinstance(calls, list) and all(
        isinstance(c, dict) and isinstance(c.get("name"), str) and isinstance(c.get("arguments", {}), dict)
        for c in calls
    )
    if not well_formed or not isinstance(step.get("text", ""), str):
        raise UsageError(
            f"{path}: not an action: {json.dumps(step)[:100]}",
            'Write {"text": "...", "calls": [{"name": "Bash", "arguments": {"command": "ls"}}]}.',
        )
    found = tuple(ToolCall(c.get("id", ""), c["name"], c.get("arguments", {})) for c in calls)
    return Action(step.get("text", ""), found, context_tokens=0)


def _with_ids(action: Action, number: int) -> Action:
    calls = tuple(
        ToolCall(f"call_{number}_{index}", call.name, call.arguments)
        for index, call in enumerate(action.calls)
    )
    return Action(action.text, calls, action.malformed, context_tokens=0)


def _last(lines: list[str], others: bool, path: Path) -> list[Any]:
    try:
        return [writable(json.loads(lines[-1]))] if lines else []
    except json.JSONDecodeError:
        if others:  # cut off by a kill
            return []
        raise UsageError(
            f"{path} is neither a trajectory nor a script", "Its first line is not JSON."
        ) from None


def _json(text: str, where: str) -> Any:
    try:
        return writable(json.loads(text))
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
