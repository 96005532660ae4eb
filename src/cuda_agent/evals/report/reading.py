"""An evaluation's folder read into records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cuda_agent.evals.metrics_records import EvalRun
from cuda_agent.evals.run_files import EvalFolder


def read_run(root: Path) -> EvalRun:
    """Read a folder that ``cuda-agent eval`` wrote, finished or not.

    Raises:
        UsageError: it is none, or a file is damaged.
    """
    folder = EvalFolder.open(root)
    settings = dataclasses.asdict(folder.settings())
    return EvalRun(folder.root.name, settings, folder.tasks(), folder.attempts())
