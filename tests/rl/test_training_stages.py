"""The stages end to end on a random model; killed with -9 anywhere and continued, the curves are the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_run import curve, make_run

HERE = Path(__file__).parent
STAGES = ("sft", "warmup", "collect", "rft", "value", "ppo")


def command(config: Path, out: Path, stage: str) -> list[str]:
    return [sys.executable, "-m", "cuda_agent", "train", stage, "--config", str(config), "--out", str(out)]


def environment() -> dict[str, str]:
    paths = [str(HERE), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}


def train(config: Path, out: Path, stage: str) -> None:
    done = subprocess.run(
        command(config, out, stage), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_killed_in_each_stage_and_continued_gives_the_same_curves(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, whole, "all")
    for stage in STAGES:
        killed = kill_within(config, broken, stage)
        assert killed, f"{stage} ended before it could be killed"
        train(config, broken, stage)
        assert curve(broken / stage) == curve(whole / stage), stage
        assert not list((broken / stage).rglob("*.part"))
    assert len(curve(whole / "warmup")) == 3
    assert any(-1 < row["reward"] < 3 for row in curve(whole / "warmup"))
    assert {0.0} < {row["length_clipped"] for row in curve(whole / "warmup")}
    assert "explained_by_task_mean" in curve(whole / "value")[-1]
    assert max(row["gap"] for row in curve(whole / "ppo")) < 1e-5  # sampler and trainer agree
    assert sum(curve(whole / "ppo")[0]["funnel"].values()) == 6


def kill_within(config: Path, out: Path, stage: str) -> bool:
    """Start a stage and kill it as soon as its first metrics, or first episodes, are on disk."""
    signs = "episodes/*/whole" if stage == "collect" else "metrics.jsonl"
    process = subprocess.Popen(
        command(config, out, stage), env=environment(), stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if any((out / stage).glob(signs)):
                break
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    finished = (out / stage / "done.json").is_file()
    if finished:
        shutil.rmtree(out / stage)
    return not finished
