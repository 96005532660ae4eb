"""On a machine whose processors others hold, clocks that disagree are no proof: no verdict, not a refusal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import TASK
from cheats import CHEATS

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge import JudgeSession
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=60.0)
BUSY = "while True: pass"
# The shell ends at once, so that the busy ones are nobody's of this process.
START = f'for i in $(seq {{count}}); do "{sys.executable}" -c "{BUSY}" >/dev/null 2>&1 & echo $!; done'


@pytest.fixture
def crowd() -> Iterator[None]:
    """Three busy processes of others for each processor."""
    script = START.format(count=3 * len(os.sched_getaffinity(0)))
    pids = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    yield
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("crowd")
def test_clocks_that_disagree_beside_others_are_no_verdict(tmp_path: Path) -> None:
    (cheat,) = (c for c in CHEATS if c.name == "clock replaced past the scan")
    with JudgeSession(TASK, CONFIG) as session:
        result = session.judge(freeze(cheat.write(tmp_path)), cheat.scope)
    assert result.infrastructure is not None and "others took" in result.infrastructure
    assert result.reward is None and not result.violations
