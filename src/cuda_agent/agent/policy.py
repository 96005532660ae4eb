"""The contract between the ReAct loop and whatever chooses the next action. No implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from cuda_agent.task import Task
from cuda_agent.trajectory import TokenRecord, ToolCall, Usage


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a policy sees it; ``parameters`` is a JSON schema derived from a typed function."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Role(StrEnum):
    """Who speaks; the values are those of chat endpoints and chat templates."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class Message:
    """One message of the linear, append-only history.

    Attributes:
        role: who speaks.
        content: text.
        calls: actions of an assistant message.
        call_id: for a tool message, the call it answers.
        tokens: token space of an assistant message, where a local model made it: its context is
            rebuilt from these ids, never from text.
    """

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    tokens: TokenRecord | None = None


@dataclass(frozen=True)
class Action:
    """What a policy chose.

    Attributes:
        text: its words.
        calls: tool calls, in order; none and nothing malformed means the policy is finished.
        malformed: one message for each action that could not be parsed.
        tokens, usage: see :class:`cuda_agent.trajectory.Turn`.
        context_tokens: tokens in the context after this action, where known (a policy without a
            context, such as the playbook, says 0); the loop estimates them otherwise.
        context_full: the policy could not act because its context is full.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    tokens: TokenRecord | None = None
    usage: Usage | None = None
    context_tokens: int | None = None
    context_full: bool = False


@dataclass(frozen=True)
class EpisodeContext:
    """What a policy may know of its episode before the first action.

    Attributes:
        workspace: the folder it works in.
        task: the reference (its source is the workspace's model.py).
        backend: ``cpu`` or ``cuda``.
        track, precision: the contract it is judged under.
        facts: device facts, as the skill text shows them.
        max_context: context limit, tokens; set by the loop.
        deadline: when the time limit is reached, on the clock of ``time.monotonic``; set by the loop.
    """

    workspace: Path
    task: Task
    backend: str
    track: str = "matched"
    precision: str = "default"
    facts: Mapping[str, Any] = field(default_factory=dict)
    max_context: int | None = None
    deadline: float | None = None


class Policy(Protocol):
    """Chooses the next action from the history."""

    @property
    def name(self) -> str:
        """As given to ``--policy``."""
        ...

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        """Begin an episode; ``history`` is not empty when one resumes."""
        ...

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Choose the next action.

        Raises:
            PolicyError: the policy cannot answer (endpoint down, weights broken).
        """
        ...

    def close(self) -> None:
        """Free what the policy holds; may run twice."""
        ...
