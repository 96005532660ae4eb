"""``cuda-agent demo``: the main job on the bundled examples."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from cuda_agent.cli.progress import Lines
from cuda_agent.config import Device, JudgeConfig
from cuda_agent.errors import CudaAgentError, InfrastructureError, TaskError, UsageError
from cuda_agent.runs.optimization import optimize_task
from cuda_agent.runs.run_folder import RunFolder
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import Outcome
from cuda_agent.tasks.targets import load_task_file

EXAMPLES = ("fused_chain", "odd_softmax", "norm_gelu")


def run_demo(
    *, out: Path | None = None, device: Device = Device.AUTO, names: Sequence[str] = ()
) -> tuple[list[Outcome], list[CudaAgentError]]:
    """Optimise examples one after the other with the playbook, telling progress on stderr.

    Args:
        out: an empty or new folder; one run in it for each example.
        device: where kernels run.
        names: which examples; all when empty.

    Returns:
        Outcomes, and the errors of examples that gave none.

    Raises:
        UsageError: no such example, or ``out`` holds something.
        ToolchainError: this machine lacks a compiler.
    """
    if unknown := [name for name in names if name not in EXAMPLES]:
        raise UsageError(f"there is no example {unknown[0]!r}", f"Choose among: {', '.join(EXAMPLES)}.")
    chosen = tuple(names) or EXAMPLES
    root = RunFolder.create(out, "demo").root
    settings = OptimizeSettings(judge=JudgeConfig(device=device))
    outcomes: list[Outcome] = []
    failures: list[CudaAgentError] = []
    with resources.as_file(resources.files("cuda_agent") / "examples") as folder:
        for index, name in enumerate(chosen):
            reporter = Lines(prefix=f"[{index + 1}/{len(chosen)} {name}] ")
            task = load_task_file(folder / f"{name}.py")
            try:
                outcomes.append(optimize_task(task, settings, out=root / name, reporter=reporter))
            except (TaskError, InfrastructureError) as error:
                # One that fails does not take the others' results away.
                reporter.say(f"failed: {error}")
                failures.append(error)
    if not outcomes and failures:
        raise failures[0]
    return outcomes, failures
