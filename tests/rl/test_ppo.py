"""The maths of PPO, check by check (checks.py), and over two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed
from checks import CHECKS, actor_critic_gradient
from modules import REAL
from rows import random_batch
from tiny import padded

from cuda_agent.rl.advantages import Moments
from cuda_agent.rl.losses import Clipping
from cuda_agent.rl.ppo import PpoConfig


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    CHECKS[name](REAL)


def on_rank(rank: int, folder: str) -> None:
    """Half of a minibatch's trajectories; gradients summed over ranks."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    half = [torch.tensor([4, 1, 0]), torch.tensor([5, 3, 2])][rank]
    gradient = actor_critic_gradient(REAL, torch.float64, padded, [half])
    torch.distributed.all_reduce(gradient)
    numbers = torch.tensor([[1.0, 2.0], [3.0, -6.0, 5.0]][rank])
    moments = Moments.of(numbers).across_ranks()
    if rank == 0:
        torch.save((gradient, moments), Path(folder) / "found.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_give_the_gradient_and_moments_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(on_rank, (str(tmp_path),), nprocs=2)
    gradient, moments = torch.load(tmp_path / "found.pt", weights_only=False)
    whole = Moments.of(torch.tensor([1.0, 2.0, 3.0, -6.0, 5.0]))
    assert moments == whole
    alone = actor_critic_gradient(REAL, torch.float64, padded, [torch.arange(6)])
    assert (gradient - alone).norm() <= 1e-6 * alone.norm()


@pytest.mark.parametrize(
    "settings",
    [
        {"truncation": 0.5},
        {"probability_floor": 1.0},
        {"gamma": 0.0},
        {"actor_lambda": 1.5},
        {"alpha": 0.0},
        {"clipping": Clipping(low=1.0)},
        {"clipping": Clipping(dual=1.0)},
        {"ratio": "both"},
        {"value_target": "td"},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        PpoConfig(**settings)


def test_minibatches_hold_every_trajectory_once() -> None:
    parts = list(REAL.ppo.minibatches(10, 4, torch.Generator().manual_seed(0)))
    assert sorted(len(part) for part in parts) == [2, 2, 3, 3]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    assert len(list(REAL.ppo.minibatches(2, 4))) == 2


def test_a_random_batch_selects_itself() -> None:
    batch, _, _ = random_batch(REAL, 0)
    same = batch.select(torch.arange(batch.num_trajectories))
    assert torch.equal(same.token_ids, batch.token_ids) and torch.equal(same.turns, batch.turns)
    assert same.to("cpu").padded(0).token_ids.shape[0] == batch.num_trajectories
