"""The linear, append-only history: messages made from turns, and how much of the context they fill."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cuda_agent.agent.policy import Action, Message, Role, ToolSpec
from cuda_agent.trajectory import Turn

RESUME_NOTE = (
    "The episode was interrupted here and now goes on. The files of the workspace are as they were left. "
    "The shell is a new one: its directory, variables, functions and background commands are lost. "
    "Read a file again before you overwrite it with Write."
)
NO_ANSWER = "no answer: the episode was interrupted before this call ended"

# Code and tables run at about three characters a token; over-counting ends an episode a little early,
# under-counting breaks it.
_TOKENS_PER_CHAR = 1 / 3
_TOKENS_PER_MESSAGE = 6


def opening(system: str, prompt: str, history: Sequence[Turn] = ()) -> list[Message]:
    """Messages an episode starts from; with the turns of an earlier run and a note, when it resumes."""
    messages = [Message(Role.SYSTEM, system), Message(Role.USER, prompt)]
    for turn in history:
        messages.extend(turn_messages(turn))
    if history:
        messages.append(Message(Role.USER, RESUME_NOTE))
    return messages


def turn_messages(turn: Turn) -> list[Message]:
    """One assistant message, an answer to each call, and a user message for each malformed action."""
    messages = [Message(Role.ASSISTANT, turn.text, turn.calls, tokens=turn.tokens)]
    texts = [observation.text for observation in turn.observations]
    texts += [NO_ANSWER] * (len(turn.calls) - len(texts))
    for call, text in zip(turn.calls, texts, strict=False):
        messages.append(Message(Role.TOOL, text, call_id=call.id))
    messages.extend(Message(Role.USER, text) for text in texts[len(turn.calls) :])
    return messages


class ContextMeter:
    """Tokens in the context: as the policy reported them, plus an estimate of what came after.

    The estimate learns the policy's own characters per token from its reports.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._base = int(_TOKENS_PER_CHAR * sum(len(json.dumps(dict(tool.parameters))) for tool in tools))
        self._counted = 0
        self._tokens_per_char = _TOKENS_PER_CHAR

    def report(self, action: Action, messages: Sequence[Message]) -> None:
        """Take a policy's count for ``messages``, its own last one included."""
        if action.context_tokens is None:
            return
        chars = sum(_chars(message) for message in messages)
        if action.context_tokens > 0 and chars > 0:
            self._tokens_per_char = min(1.0, max(0.15, action.context_tokens / chars))
        self._base = action.context_tokens
        self._counted = len(messages)

    def tokens(self, messages: Sequence[Message]) -> int:
        """Tokens that ``messages`` fill."""
        new = messages[self._counted :]
        chars = sum(_chars(message) for message in new)
        return self._base + int(chars * self._tokens_per_char) + _TOKENS_PER_MESSAGE * len(new)


def _chars(message: Message) -> int:
    return len(message.content) + sum(len(c.name) + len(str(dict(c.arguments))) for c in message.calls)
