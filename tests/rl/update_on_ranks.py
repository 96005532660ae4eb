"""One PPO update of the trainer on this rank's share: ``python update_on_ranks.py RANK WORLD PORT OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from small_models import small_model, small_rollouts

from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.ppo import PpoConfig
from cuda_agent.rl.trainer import Trainer, TrainerOptions


def main(rank: int, world: int, port: str, out: Path) -> None:
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    torch.manual_seed(1)
    networks = Networks(small_model(dtype=torch.float64), NetworkOptions(rank=4))
    options = TrainerOptions(ppo=PpoConfig(actor_lambda=0.95), num_minibatches=1, actor_lr=1e-2)
    rollouts = small_rollouts((9, 14, 6, 11))
    metrics = Trainer(networks, options).ppo_step(rollouts[rank::world], seed=0)
    if rank == 0:
        torch.save({"state": networks.state(), "metrics": metrics}, out)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
