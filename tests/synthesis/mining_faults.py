"""A miner's worker with two operators more: one crashes its process, one never answers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from cuda_agent.synthesis.mine.worker import MineWorker


class FaultyWorker(MineWorker):
    """As the miner's, but for two ids."""

    def seed(self, source: str, id_: str) -> dict[str, Any]:
        if id_ == "crash":
            os.abort()
        if id_ == "hang":
            time.sleep(600)
        return super().seed(source, id_)


if __name__ == "__main__":
    FaultyWorker().serve()
