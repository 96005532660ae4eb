"""Every version of a candidate that a public script judged: files on disk, verdicts, times."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.config import Scope
from cuda_agent.errors import UsageError, WorkspaceError
from cuda_agent.result import Result
from cuda_agent.workspace.snapshot import Snapshot, freeze

log = logging.getLogger(__name__)


@dataclass
class Version:
    """One version and what is known of it.

    Attributes:
        snapshot: its files.
        order: rank in which it was first seen.
        verified: passed the public part; ``None`` when it has not run. One failure stays a failure.
        time_us: median of its last profile, microseconds.
    """

    snapshot: Snapshot
    order: int
    verified: bool | None = None
    time_us: float | None = None

    def update(self, scope: Scope, *, correct: bool | None, time_us: float | None) -> None:
        """Take in one public result."""
        if correct is False:
            self.verified = False
        elif scope is Scope.VERIFY and correct and self.verified is None:
            self.verified = True
        self.time_us = self.time_us if time_us is None else time_us


class Ledger:
    """Versions by hash; kept in ``folder`` so that nothing is lost when a run dies.

    Safe to call from the judge service's thread. A version that cannot be written (full disk) is kept
    in memory, with a warning in the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._versions: dict[str, Version] = {}

    @classmethod
    def load(cls, folder: Path) -> Ledger:
        """Read back what an earlier process recorded; damaged lines and folders are skipped."""
        ledger = cls(folder)
        try:
            lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
        except OSError:
            return ledger
        for line in lines:
            try:
                ledger._replay(json.loads(line))
            except (ValueError, KeyError, TypeError, WorkspaceError, UsageError, OSError) as error:
                log.warning("skipped a record of %s: %s", folder, error)
        return ledger

    def record(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """Take in one public result."""
        time_us = result.candidate_us.median if result.candidate_us else None
        with self._lock:
            version = self._version(snapshot)
            version.update(scope, correct=result.correct, time_us=time_us)
            self._append(
                {"hash": snapshot.hash, "scope": str(scope), "correct": result.correct, "time_us": time_us}
            )

    def get(self, snapshot: Snapshot) -> Version | None:
        """What is known of a version; ``None``: no script ever judged it."""
        with self._lock:
            return self._versions.get(snapshot.hash)

    def best(self) -> Version | None:
        """The fastest verified version; among untimed ones the latest. ``None``: none is verified."""
        verified = self.verified()
        timed = [v for v in verified if v.time_us is not None]
        if timed:
            return min(timed, key=lambda v: v.time_us or 0.0)
        return max(verified, key=lambda v: v.order, default=None)

    def verified(self) -> list[Version]:
        """Versions that passed the public part, in the order first seen."""
        with self._lock:
            return [v for v in self._versions.values() if v.verified]

    def __len__(self) -> int:
        return len(self._versions)

    def _version(self, snapshot: Snapshot) -> Version:
        if snapshot.hash not in self._versions:
            self._versions[snapshot.hash] = Version(snapshot, len(self._versions))
            try:
                snapshot.write(self._folder / snapshot.hash)
            except OSError as error:
                log.warning("version %s is kept in memory only: %s", snapshot.hash, error)
        return self._versions[snapshot.hash]

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with (self._folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            log.warning("cannot record a result: %s", error)

    def _replay(self, record: dict[str, Any]) -> None:
        key = record["hash"]
        if key not in self._versions:
            snapshot = freeze(self._folder / key)
            if snapshot.hash != key:
                raise ValueError(f"version {key} was changed")
            self._versions[key] = Version(snapshot, len(self._versions))
        self._versions[key].update(
            Scope(record["scope"]), correct=record["correct"], time_us=record["time_us"]
        )
