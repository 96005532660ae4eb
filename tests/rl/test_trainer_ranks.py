"""Two processes with half of the rollouts each make the update of one with all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def update(out: Path, world: int) -> dict:  # type: ignore[type-arg]
    paths = [str(HERE), str(HERE.parents[1] / "src")]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "update_on_ranks.py"), str(rank), str(world), port, str(out)],
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return torch.load(out)


@pytest.mark.slow
def test_update_on_two_ranks_equals_that_on_one(tmp_path: Path) -> None:
    one, two = (update(tmp_path / f"{world}.pt", world) for world in (1, 2))
    for part in ("actor", "critic", "value_head"):
        for name, weight in one["state"][part].items():
            torch.testing.assert_close(two["state"][part][name], weight, atol=1e-6, rtol=0)
    for name in ("policy_loss", "value_loss", "tokens", "ratio", "actor_norm"):
        assert two["metrics"][name] == pytest.approx(one["metrics"][name], abs=1e-6)
