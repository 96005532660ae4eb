"""Two processes make the updates of one, weights whole or sharded, and go on with its states."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.rl.ranks import divide

HERE = Path(__file__).parent
ALL = [0, 1, 2, 3]
Found = dict[str, Any]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run(folder: Path, world: int, jobs: list[dict[str, Any]]) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    paths = [str(HERE), str(HERE.parents[1] / "src")]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "update_on_ranks.py"), str(rank), str(world), port, str(folder)],
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def job(name: str, mode: str, steps: list[int], *, dtype: str = "float64", **more: Any) -> dict[str, Any]:
    return {"name": name, "mode": mode, "steps": steps, "dtype": dtype, **more}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: a state is saved after two of four steps, and read on another number of ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    mid = {"save_after": 1}
    one = [
        job("adapters", "adapters", ALL, save="adapters-of-1.pt", **mid),
        job("whole", "whole", ALL, save="whole-of-1.pt", **mid),
    ]
    two = [
        job("adapters", "adapters", ALL),
        job("whole", "whole", ALL),
        job("sharded", "sharded", ALL, save="sharded-of-2.pt", **mid),
        job("adapters-on", "adapters", [2, 3], load="adapters-of-1.pt"),
        job("sharded-on", "sharded", [2, 3], load="whole-of-1.pt"),
        job("sharded-same", "sharded", [2, 3], load="sharded-of-2.pt"),
        job("narrow", "sharded", ALL, dtype="bfloat16", save="narrow.pt", save_after=3),
        job("different", "different", []),
    ]
    back = [
        job("whole-on", "whole", [2, 3], load="sharded-of-2.pt"),
        job("narrow-loaded", "whole", [], dtype="bfloat16", load="narrow.pt"),
        job("narrow", "whole", ALL, dtype="bfloat16"),
    ]
    for world, jobs in ((1, one), (2, two), (1, back)):
        run(folder, world, jobs)
    return folder


def found(runs: Path, name: str, world: int, rank: int = 0) -> Found:
    result: Found = torch.load(runs / f"{name}-{world}-{rank}.pt")
    return result


def assert_same_curve(some: Found, wanted: list[dict[str, float]]) -> None:
    assert len(some["curve"]) == len(wanted)
    for row, other in zip(some["curve"], wanted, strict=True):
        assert row == pytest.approx(other, rel=1e-6, abs=1e-6)


def assert_same_weights(some: Found, wanted: Found) -> None:
    for part, weights in wanted["state"]["networks"].items():
        for name, weight in weights.items():
            torch.testing.assert_close(some["state"]["networks"][part][name], weight, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "alone"), [("adapters", "adapters"), ("whole", "whole"), ("sharded", "whole")]
)
def test_updates_on_two_ranks_equal_those_on_one(runs: Path, mode: str, alone: str) -> None:
    one = found(runs, alone, 1)
    assert all(row["actor_norm"] > 0.3 for row in one["curve"] if "actor_norm" in row)  # clipping acts
    assert one["curve"][3]["policy_loss"] != one["curve"][2]["policy_loss"]
    for rank in (0, 1):
        assert_same_curve(found(runs, mode, 2, rank), one["curve"])
    assert_same_weights(found(runs, mode, 2), one)


@pytest.mark.slow
def test_each_of_two_ranks_holds_half_of_weights_masters_and_moments(runs: Path) -> None:
    whole = found(runs, "whole", 1)["held"]
    halves = [found(runs, "sharded", 2, rank)["held"] for rank in (0, 1)]
    for name, number in whole.items():
        assert number <= sum(half[name] for half in halves) <= 1.01 * number  # the critic's head is whole
        assert all(0.48 * number < half[name] < 0.52 * number for half in halves)


@pytest.mark.slow
def test_states_go_on_at_another_number_of_ranks(runs: Path) -> None:
    one, two = found(runs, "whole", 1), found(runs, "sharded", 2)
    for name, world, unbroken in (
        ("adapters-on", 2, found(runs, "adapters", 1)),
        ("sharded-on", 2, one),
        ("whole-on", 1, one),
    ):
        assert_same_curve(found(runs, name, world), unbroken["curve"][2:])
        assert_same_weights(found(runs, name, world), unbroken)
    again = found(runs, "sharded-same", 2)
    assert again["curve"] == two["curve"][2:]  # to the bit
    assert _equal(again["state"], two["state"])


@pytest.mark.slow
def test_half_precision_has_sharded_masters_that_are_read_whole(runs: Path) -> None:
    saved, read = torch.load(runs / "narrow.pt"), found(runs, "narrow-loaded", 1)["state"]
    assert _equal(saved, read)
    masters = [master for master in saved["actor"]["masters"] if master is not None]
    assert masters and all(master.dtype is torch.float32 for master in masters)
    one, two = found(runs, "narrow", 1)["curve"], found(runs, "narrow", 2)["curve"]
    assert two[0]["nll_loss"] == pytest.approx(one[0]["nll_loss"], rel=1e-2)
    assert two[0]["actor_norm"] == pytest.approx(one[0]["actor_norm"], rel=3e-2)


@pytest.mark.slow
def test_a_sharded_actor_is_written_whole(runs: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(runs / "actor-sharded", dtype=torch.float64)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    weights = found(runs, "whole", 1)["state"]["networks"]["actor"]
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, weights[name], atol=1e-6, rtol=0)


@pytest.mark.slow
def test_ranks_with_different_rollouts_are_told(runs: Path) -> None:
    for rank in (0, 1):
        assert "ranks were given different rollouts" in found(runs, "different", 2, rank)["error"]


def test_division_gives_every_trajectory_once_and_every_rank_as_many_passes() -> None:
    lengths = (9, 14, 6, 11, 17, 40, 3)
    for world in (1, 2, 3, 9):
        for chosen in (tuple(range(7)), (4,), (5, 0, 3)):
            ranks = divide(lengths, chosen, max_tokens=20, num_ranks=world)
            assert len(ranks) == world and len({len(passes) for passes in ranks}) == 1
            passes = [some for rank in ranks for some in rank]
            assert sorted(one for some in passes for one in some) == sorted(chosen)
            assert all(len(some) < 2 or sum(lengths[one] for one in some) <= 20 for some in passes)
    assert divide(lengths, (5, 0, 3), max_tokens=50, num_ranks=1) == [[[5, 0], [3]]]
    assert divide(lengths, (5, 0, 3, 1), max_tokens=99, num_ranks=2) == [[[5]], [[1, 3, 0]]]


def _equal(some: Any, other: Any) -> bool:
    if isinstance(some, torch.Tensor):
        return torch.equal(some, other)
    if isinstance(some, dict):
        return some.keys() == other.keys() and all(_equal(some[key], other[key]) for key in some)
    if isinstance(some, list | tuple):
        return len(some) == len(other) and all(map(_equal, some, other))
    return bool(some == other)
