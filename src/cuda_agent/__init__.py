"""cuda-agent: a PyTorch module in, a verified faster kernel out.

Everything public is in ``__all__`` and is imported when first used: ``import cuda_agent`` imports no
torch. ``judge`` is the package whose function :func:`cuda_agent.judge.judge` reaches a verdict.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "CudaAgentError",
    "Device",
    "Ending",
    "EpisodeConfig",
    "InfrastructureError",
    "JudgeConfig",
    "OptimizedModule",
    "PolicyError",
    "Precision",
    "Result",
    "Scope",
    "Stage",
    "Task",
    "TaskError",
    "Times",
    "ToolchainError",
    "Track",
    "Trajectory",
    "UsageError",
    "Violation",
    "ViolationKind",
    "WorkspaceError",
    "__version__",
    "judge",
    "load",
    "load_task",
    "optimize",
    "read_trajectory",
    "resolve_target",
]

if TYPE_CHECKING:
    from cuda_agent import judge as judge
    from cuda_agent.api import optimize as optimize
    from cuda_agent.config import Device as Device
    from cuda_agent.config import EpisodeConfig as EpisodeConfig
    from cuda_agent.config import JudgeConfig as JudgeConfig
    from cuda_agent.config import Precision as Precision
    from cuda_agent.config import Scope as Scope
    from cuda_agent.config import Track as Track
    from cuda_agent.errors import CudaAgentError as CudaAgentError
    from cuda_agent.errors import InfrastructureError as InfrastructureError
    from cuda_agent.errors import PolicyError as PolicyError
    from cuda_agent.errors import TaskError as TaskError
    from cuda_agent.errors import ToolchainError as ToolchainError
    from cuda_agent.errors import UsageError as UsageError
    from cuda_agent.errors import WorkspaceError as WorkspaceError
    from cuda_agent.result import Result as Result
    from cuda_agent.result import Stage as Stage
    from cuda_agent.result import Times as Times
    from cuda_agent.result import Violation as Violation
    from cuda_agent.result import ViolationKind as ViolationKind
    from cuda_agent.runs.loaded import load as load
    from cuda_agent.runtime.guarded import OptimizedModule as OptimizedModule
    from cuda_agent.task import Task as Task
    from cuda_agent.task import load_task as load_task
    from cuda_agent.tasks.targets import resolve_target as resolve_target
    from cuda_agent.trajectory import Ending as Ending
    from cuda_agent.trajectory import Trajectory as Trajectory
    from cuda_agent.trajectory import read_trajectory as read_trajectory

_HOMES = {
    "api": ("optimize",),
    "config": ("Device", "EpisodeConfig", "JudgeConfig", "Precision", "Scope", "Track"),
    "errors": (
        "CudaAgentError",
        "InfrastructureError",
        "PolicyError",
        "TaskError",
        "ToolchainError",
        "UsageError",
        "WorkspaceError",
    ),
    "runs.loaded": ("load",),
    "result": ("Result", "Stage", "Times", "Violation", "ViolationKind"),
    "runtime.guarded": ("OptimizedModule",),
    "tasks.targets": ("resolve_target",),
    "task": ("Task", "load_task"),
    "trajectory": ("Ending", "Trajectory", "read_trajectory"),
}


def __getattr__(name: str) -> Any:
    if name == "judge":
        return importlib.import_module("cuda_agent.judge")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"cuda_agent.{home}"), name)
    raise AttributeError(f"module 'cuda_agent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
