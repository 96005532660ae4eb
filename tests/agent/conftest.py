"""An episode's parts, all real: workspace, toolbox, trajectory file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.policy import EpisodeContext, Policy
from cuda_agent.agent.react import run_episode
from cuda_agent.agent.tools import Toolbox
from cuda_agent.config import EpisodeConfig
from cuda_agent.task import Task
from cuda_agent.trajectory import (
    Ending,
    Header,
    Observation,
    ToolCall,
    Trajectory,
    TrajectoryWriter,
    Turn,
    read_trajectory,
)

TASK = Task(code="class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n", name="toy")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def tools(workspace: Path) -> Iterator[Toolbox]:
    with Toolbox(workspace, {}) as toolbox:
        yield toolbox


@pytest.fixture
def call(tools: Toolbox) -> Callable[..., Observation]:
    """Call a tool by name."""
    return lambda name, **arguments: tools.call(ToolCall("c", name, arguments))


@dataclass
class Episode:
    ending: Ending
    detail: str
    trajectory: Trajectory


@pytest.fixture
def episode(workspace: Path, tools: Toolbox, tmp_path: Path) -> Callable[..., Episode]:
    """Run a policy to its end; what the trajectory file says afterwards."""

    def run(
        policy: Policy,
        *,
        config: EpisodeConfig | None = None,
        history: Sequence[Turn] = (),
        on_turn: Callable[[Turn], None] | None = None,
        **context: Any,
    ) -> Episode:
        path = tmp_path / "trajectory.jsonl"
        header = Header(TASK.hash, policy.name, "cpu", "matched", "You are terse.", "Make it fast.")
        ending, detail = run_episode(
            policy,
            EpisodeContext(workspace, TASK, "cpu", **context),
            tools=tools,
            config=config or EpisodeConfig(),
            writer=TrajectoryWriter(path, header, resume=bool(history)),
            system=header.system,
            prompt=header.prompt,
            history=history,
            on_turn=on_turn,
        )
        recorded = read_trajectory(path)
        assert recorded.ending is ending, "the file says the same ending"
        return Episode(ending, detail, recorded)

    return run
