"""Folders that cannot be frozen get a verdict, not an exception."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from candidates import TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge import judge
from cuda_agent.result import Fault, Stage

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=20.0)


@pytest.mark.parametrize("what", ["file", "folder", "model", "huge", "many", "fifo"])
def test_folders_that_cannot_be_frozen_get_a_verdict(tmp_path: Path, what: str) -> None:
    folder = write_candidate(tmp_path)
    kernels = folder / "kernels"
    if what == "file":
        (kernels / "more.cpp").symlink_to("/etc/hostname")
    elif what == "folder":
        (kernels / "more").symlink_to("/etc", target_is_directory=True)
    elif what == "model":
        (folder / "model_new.py").rename(folder / "other.py")
        (folder / "model_new.py").symlink_to("other.py")
    elif what == "huge":
        (kernels / "huge.cpp").write_bytes(b"//" + b" " * (1 << 20))
    elif what == "many":
        for index in range(300):
            (kernels / f"h{index}.h").touch()
    else:
        os.mkfifo(kernels / "pipe.cpp")
    result = judge(folder, task=TASK, config=CONFIG)
    assert (result.stage, result.correct, result.reward) == (Stage.BUILD, False, -1) and result.detail
    assert result.fault is None or isinstance(result.fault, Fault)
