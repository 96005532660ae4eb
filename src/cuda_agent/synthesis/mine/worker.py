"""The miner's worker: tries one subject after another. Started as ``python worker.py FD``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cuda_agent.judge.worker import Worker, connect, settle
from cuda_agent.synthesis.mine.sources import SOURCES
from cuda_agent.synthesis.mine.traits import Idle


class MineWorker(Worker):
    """Answers with a seed, or the reason that there is none."""

    def __init__(self) -> None:
        super().__init__(connect())
        self.handlers |= {"start": self._start, "mine": self._mine}

    def _start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        settle("cpu", 1)
        return {}

    def _mine(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"seed": self.seed(message["source"], message["id"]), "reason": ""}
        except Idle as idle:
            return {"seed": None, "reason": str(idle)}

    def seed(self, source: str, id_: str) -> dict[str, Any]:
        """One seed, as plain data.

        Raises:
            Idle: there is none; one line says why.
        """
        return SOURCES[source].mine(id_).to_dict()


if __name__ == "__main__":
    MineWorker().serve()
