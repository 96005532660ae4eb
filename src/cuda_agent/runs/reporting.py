"""Who is told what happens during a run."""

from __future__ import annotations

from typing import Protocol

from cuda_agent.config import Scope
from cuda_agent.result import Result
from cuda_agent.trajectory import Turn
from cuda_agent.workspace.snapshot import Snapshot


class Reporter(Protocol):
    """Told what happens, for people. Called from several threads."""

    def say(self, text: str) -> None:
        """One line of progress."""
        ...

    def turn(self, turn: Turn) -> None:
        """A turn was made."""
        ...

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """A public script judged a version."""
        ...


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None:
        """See :class:`Reporter`."""

    def turn(self, turn: Turn) -> None:
        """See :class:`Reporter`."""

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """See :class:`Reporter`."""
