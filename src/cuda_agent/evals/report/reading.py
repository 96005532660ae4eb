"""An evaluation's folder read into records."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
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


def read_runs(roots: Sequence[Path]) -> dict[Path, EvalRun]:
    """Read folders; runs of one name are told apart by their place on the command line.

    Raises:
        UsageError: see :func:`read_run`.
    """
    runs = {root: read_run(root) for root in roots}
    times = Counter(run.name for run in runs.values())
    return {
        root: dataclasses.replace(run, name=f"{run.name} ({place})") if times[run.name] > 1 else run
        for place, (root, run) in enumerate(runs.items(), 1)
    }
