"""Keeps sampling and measuring apart on one device: while a verdict is timed, no episode generates."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cuda_agent.agent.policy import Action, EpisodeContext, Message, Policy, ToolSpec
from cuda_agent.pool.lease import lease


class Gate:
    """One lease of a device, shared by all episodes that generate at the moment.

    The first one takes the device's lease, the last one gives it back; the judge holds the same lease while
    it runs and times a candidate. Builds need no lease and overlap. An episode that waits for its verdict
    does not generate, so the judge gets its turn.

    Args:
        device: ``cpu`` or ``cuda:N``; ``None``: the policy runs elsewhere, nothing is held.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._inside = 0
        self._held = ExitStack()

    @contextmanager
    def generating(self) -> Iterator[None]:
        """The block in which an episode samples; others may be inside too."""
        with self._lock:
            if self._inside == 0 and self._device is not None:
                self._held.enter_context(lease(self._device))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._held.close()


class Gated:
    """A policy that samples only while its gate is open."""

    def __init__(self, policy: Policy, gate: Gate) -> None:
        self._policy, self._gate = policy, gate

    @property
    def name(self) -> str:
        """Of the policy inside."""
        return self._policy.name

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        """See :class:`cuda_agent.agent.policy.Policy`."""
        self._policy.start(context, history)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """See :class:`cuda_agent.agent.policy.Policy`."""
        with self._gate.generating():
            return self._policy.act(messages, tools)

    def close(self) -> None:
        """See :class:`cuda_agent.agent.policy.Policy`."""
        self._policy.close()
