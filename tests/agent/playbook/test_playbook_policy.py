"""The playbook as a policy: a trajectory like any other, through the real tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playbook_modules import MODULES, module

import cuda_agent
from cuda_agent.agent.policies.playbook import PlaybookPolicy
from cuda_agent.agent.policy import EpisodeContext
from cuda_agent.agent.react import run_episode
from cuda_agent.agent.tools import Toolbox
from cuda_agent.config import EpisodeConfig, Precision, Track
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, Trajectory, TrajectoryWriter, read_trajectory
from cuda_agent.workspace.layout import create

# Stand-ins for the judge's clients: a time that depends on CONFIG, so that tuning has something to find.
PROFILING = """
import re
text = open("model_new.py").read()
config = eval(re.search(r"^CONFIG = (.*)$", text, re.MULTILINE)[1])
us = {times}.get(tuple(config[0]))
if us is None:
    raise SystemExit("[FAIL] timing: refused")
print(f"Torch Baseline: 100.000us, Torch Compile: 90.000us, CUDA Extension: {{us:.3f}}us")
"""
Run = Callable[..., Trajectory]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(source: str, *, prepare: Callable[[Path], None] = lambda _: None) -> Trajectory:
        task = Task(code=source, name="toy")
        workspace, log = tmp_path / "workspace", tmp_path / "trajectory.jsonl"
        create(workspace, task, backend="cpu", track=Track.MATCHED, precision=Precision.DEFAULT)
        prepare(workspace)
        package = str(Path(cuda_agent.__file__).parents[1])
        env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": package}
        header = Header(task.hash, "playbook", "cpu", "matched", "system", "prompt")
        with Toolbox(workspace, env) as tools:
            run_episode(
                PlaybookPolicy(),
                EpisodeContext(workspace, task, "cpu"),
                tools=tools,
                config=EpisodeConfig(),
                writer=TrajectoryWriter(log, header),
                system="system",
                prompt="prompt",
            )
        return read_trajectory(log)

    return go


def stand_ins(
    times: dict[tuple[int, ...], float], verify: str = "print('[PASS] verify success')"
) -> Callable[[Path], None]:
    def prepare(workspace: Path) -> None:
        (workspace / "utils" / "compile.sh").write_text("echo compiled\n")
        (workspace / "utils" / "verification.py").write_text(verify + "\n")
        (workspace / "utils" / "profiling.py").write_text(PROFILING.format(times=times))

    return prepare


SMALL = module("", "return torch.softmax(x, -1)", "torch.randn(160, 330)")


def test_a_refusal_ends_the_episode_with_the_reason_and_leaves_the_starter(run: Run, tmp_path: Path) -> None:
    trajectory = run(module("", "return torch.relu(torch.cumsum(x, -1))", "torch.randn(4, 6)"))
    assert trajectory.ending is Ending.FINISHED
    assert "cumsum" in trajectory.turns[-1].text
    assert "NotImplementedError" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert not list((tmp_path / "workspace" / "kernels").iterdir())


def test_a_faster_configuration_is_kept_and_verified(run: Run, tmp_path: Path) -> None:
    trajectory = run(SMALL, prepare=stand_ins({(0,): 10.0, (1,): 7.0}))
    assert trajectory.ending is Ending.FINISHED
    assert "CONFIG = [[1]]" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert "7.000 us" in trajectory.turns[-1].text
    commands = [c.arguments["command"] for t in trajectory.turns for c in t.calls if c.name == "Bash"]
    assert commands[-1].endswith("utils.verification"), "the state that counts is verified last"
    assert not any(o.is_error for t in trajectory.turns for o in t.observations)


def test_a_slower_configuration_is_taken_back(run: Run, tmp_path: Path) -> None:
    trajectory = run(SMALL, prepare=stand_ins({(0,): 10.0, (1,): 9.9}))
    assert "CONFIG = [[0]]" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert "10.000 us" in trajectory.turns[-1].text


# Many configurations: a pointwise kernel over long rows.
LONG = module("", "return torch.relu(x) * 2", "torch.randn(4, 300000)")


def profiles(trajectory: Trajectory) -> int:
    return sum("utils.profiling" in str(c.arguments) for t in trajectory.turns for c in t.calls)


def test_a_refused_profile_does_not_end_tuning(run: Run, tmp_path: Path) -> None:
    trajectory = run(LONG, prepare=stand_ins({(0,): 10.0, (4,): 6.0}))
    assert "CONFIG = [[4]]" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert "6.000 us" in trajectory.turns[-1].text
    assert profiles(trajectory) <= 8


def test_tuning_goes_on_where_the_first_configuration_cannot_be_timed(run: Run, tmp_path: Path) -> None:
    trajectory = run(LONG, prepare=stand_ins({(2,): 6.0}))
    assert "CONFIG = [[2]]" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert "verified" in trajectory.turns[-1].text


def test_a_round_without_gain_ends_tuning(run: Run, tmp_path: Path) -> None:
    same = {(n,): 10.0 - n / 100 for n in range(16)}
    trajectory = run(
        module("", "return torch.relu(x) * 2, torch.tanh(y) * 2, torch.exp(z)",
               "torch.randn(4, 300000), torch.randn(5, 290000), torch.randn(6, 280000)", "x, y, z"),
        prepare=stand_ins({(a, b, c): 10.0 for a in range(9) for b in range(9) for c in range(9)} | same),
    )  # fmt: skip
    assert profiles(trajectory) == 4, "the first, then one for each of three kernels"
    assert "CONFIG = [[0, 0, 0]]" in (tmp_path / "workspace" / "model_new.py").read_text()


def test_a_fast_configuration_that_does_not_verify_gives_way_to_the_next(run: Run, tmp_path: Path) -> None:
    picky = (
        "import re, sys\n"
        "wrong = 'CONFIG = [[4]]' in open('model_new.py').read()\n"
        "print('[FAIL] check 1/5: max error 3' if wrong else '[PASS] verify success'); sys.exit(wrong)"
    )
    trajectory = run(LONG, prepare=stand_ins({(0,): 10.0, (2,): 7.5, (4,): 6.0}, verify=picky))
    assert "CONFIG = [[2]]" in (tmp_path / "workspace" / "model_new.py").read_text()
    assert any("does not verify" in turn.text for turn in trajectory.turns)
    assert "verified" in trajectory.turns[-1].text


def test_a_wrong_kernel_is_not_timed(run: Run) -> None:
    failing = "import sys; print('[FAIL] check 1/5: max error 3'); sys.exit(1)"
    trajectory = run(SMALL, prepare=stand_ins({}, verify=failing))
    assert trajectory.ending is Ending.FINISHED
    assert "max error 3" in trajectory.turns[-1].text
    assert not any("profiling" in str(c.arguments) for t in trajectory.turns for c in t.calls)


@pytest.mark.slow
def test_a_whole_episode_against_the_judge(run: Run) -> None:
    trajectory = run(MODULES["layer_norm_gelu"])
    assert trajectory.ending is Ending.FINISHED
    assert "verified" in trajectory.turns[-1].text
    assert all(turn.text for turn in trajectory.turns), "every turn says what it does"
