"""The rule-based policy: no model, the same tools as any other policy (see cuda_agent.agent.playbook)."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.agent.playbook.script import Script, Step, episode
from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role, ToolSpec
from cuda_agent.trajectory import ToolCall


class PlaybookPolicy:
    """Plans fusions from the module's graph, writes kernels from templates, verifies and tunes them."""

    name = "playbook"

    def __init__(self) -> None:
        self._script: Script | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._number = 0

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        """See :class:`cuda_agent.agent.policy.Policy`; a resumed episode plans again from the start."""
        self._script = episode(context)
        self._calls = ()
        self._number = sum(len(m.calls) for m in history)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:  # noqa: ARG002
        """See :class:`cuda_agent.agent.policy.Policy`."""
        assert self._script is not None
        answers = {m.call_id: m.content for m in messages if m.role is Role.TOOL}
        try:
            if self._calls:
                step = self._script.send([answers.get(c.id, "") for c in self._calls])
            else:
                step = next(self._script)
        except StopIteration:
            return Action("")
        self._calls = self._tool_calls(step)
        return Action(step.text, self._calls)

    def close(self) -> None:
        """See :class:`cuda_agent.agent.policy.Policy`."""
        if self._script is not None:
            self._script.close()
            self._script = None

    def _tool_calls(self, step: Step) -> tuple[ToolCall, ...]:
        calls = []
        for call in step.calls:
            self._number += 1
            calls.append(ToolCall(f"playbook_{self._number}", call.tool, call.arguments))
        return tuple(calls)
