"""A reference runner that is lost while it and a candidate are timed is our failure, not the candidate's."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest
from candidates import TASK

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.devices import choose_place
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Reference


def test_a_runner_killed_in_a_call_on_unseen_values() -> None:
    config = JudgeConfig(device=Device.CPU)
    with (
        closing(Reference(TASK, config, choose_place("cpu", config))) as reference,
        Block(2, device="cpu") as flags,
    ):
        reference.load(seed=1)
        seen, new = reference.draw(case=0), reference.draw(case=0)

        def release() -> None:
            os.killpg(reference._worker._process.pid, signal.SIGKILL)

        with closing(seen), closing(new), pytest.raises(InfrastructureError, match="killed during time_one"):
            reference.time_one(seen, new, flags=flags, release=release)
