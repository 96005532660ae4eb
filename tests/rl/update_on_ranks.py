"""Runs of the trainer on this rank, one after the other: ``python update_on_ranks.py RANK WORLD PORT JOBS``.

JOBS is a folder with ``jobs.json``. A job is ``{"name", "mode", "dtype", "steps", "load", "save"}``: steps of
a fixed schedule, from a saved state or the beginning; each rank writes ``NAME-WORLD-RANK.pt``.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
from small_models import small_model, small_rollouts

from cuda_agent.errors import UsageError
from cuda_agent.rl.checkpoints import load_file, save_file
from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.ppo import PpoConfig
from cuda_agent.rl.sharding import local_of
from cuda_agent.rl.trainer import Metrics, Trainer, TrainerOptions

LENGTHS = (9, 14, 6, 11, 17)
# Five trajectories in three minibatches, passes of at most 15 tokens: on two ranks one has more passes than
# the other, and in a minibatch of one trajectory a rank has none. Gradients are larger than the bound.
OPTIONS = TrainerOptions(
    ppo=PpoConfig(actor_lambda=0.95),
    actor_lr=1e-2,
    critic_lr=1e-2,
    num_minibatches=3,
    max_tokens=15,
    max_grad_norm=0.3,
)


def trainer_of(mode: str, dtype: str) -> Trainer:
    torch.manual_seed(1)
    options = NetworkOptions(rank=4 if mode == "adapters" else 0, shard=mode == "sharded")
    return Trainer(Networks(small_model(dtype=getattr(torch, dtype)), options), OPTIONS)


def make_step(trainer: Trainer, number: int) -> Metrics:
    rollouts = small_rollouts(LENGTHS, seed=number)
    if number == 0:
        trainer.start_critic(0.5)
        return trainer.nll_step(rollouts)
    if number == 1:
        return trainer.value_step(rollouts)
    return trainer.ppo_step(rollouts, seed=number)


def held(trainer: Trainer) -> dict[str, int]:
    """Bytes on this rank: of all weights, and of the optimisers' masters and moments."""
    adams = (trainer.actor._adam, trainer.critic._adam)
    moments = [m for adam in adams for state in adam.state.values() for m in state.values()]
    masters = [*trainer.actor.masters, *trainer.critic.masters]
    return {
        "weights": sum(local_of(weight).nbytes for weight in trainer.networks.parameters()),
        "optimisers": sum(tensor.nbytes for tensor in (*moments, *masters)),
    }


def run(job: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    trainer = trainer_of(job["mode"], job["dtype"])
    if job.get("load"):
        trainer.load_state_dict(load_file(folder / job["load"], device="cpu"))
    curve = []
    for number in job["steps"]:
        curve.append(make_step(trainer, number))
        if number == job.get("save_after"):
            save(trainer, folder / job["save"], rank)
    state = trainer.state_dict()
    trainer.networks.save_actor(folder / f"actor-{job['name']}")
    return {"curve": curve, "held": held(trainer), "state": state if rank == 0 else None}


def save(trainer: Trainer, path: Path, rank: int) -> None:
    state = trainer.state_dict()
    if rank == 0:
        save_file(path, state)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def different_batches(rank: int) -> dict[str, Any]:
    try:
        trainer_of("whole", "float32").nll_step(small_rollouts(LENGTHS, seed=rank))
    except UsageError as error:
        return {"error": str(error)}
    return {}


def main(rank: int, world: int, port: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
    for job in json.loads((folder / "jobs.json").read_text()):
        found = different_batches(rank) if job["mode"] == "different" else run(job, folder, rank)
        torch.save(found, folder / f"{job['name']}-{world}-{rank}.pt")
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
