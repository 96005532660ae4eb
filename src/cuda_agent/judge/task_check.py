"""Whether a task can be judged at all: asked once, before anything is written or spent."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cuda_agent.config import JudgeConfig
from cuda_agent.task import Task

if TYPE_CHECKING:
    from cuda_agent.judge.reference import Reference


def check_task(task: Task, config: JudgeConfig) -> tuple[tuple[str, ...], ...]:
    """Build the reference in a disposable process and run every input case twice.

    Covers: it imports, builds, runs, fits, gives tensors, and gives the same twice. Does not cover
    outputs that never depend on the inputs.

    Args:
        task: the reference.
        config: ``device`` must be resolved (not ``auto``).

    Returns:
        For each case, each input in words (``float32[8,64]``).

    Raises:
        TaskError: it cannot be judged, with the reason.
        InfrastructureError: the process was lost for a reason of ours.
    """
    from cuda_agent.judge.devices import choose_place
    from cuda_agent.judge.reference import Reference

    reference = Reference(task, config, choose_place(str(config.device), config))
    try:
        reference.load(secrets.randbits(31))
        return tuple(_run_case(reference, case) for case in range(len(reference.weights)))
    finally:
        reference.close()


def _run_case(reference: Reference, case: int) -> tuple[str, ...]:
    drawn = reference.draw(case=case)
    try:
        reference.run(drawn, float64=False, check=True).close()
        return drawn.words
    finally:
        drawn.close()
