"""What the stages compute of episodes and files, apart from training."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_agent.agent.policies.options import ToolFormat
from cuda_agent.agent.policies.tokenspace import TokenSpace
from cuda_agent.errors import UsageError
from cuda_agent.rl.advantages import explained_variance, task_mean_predictions
from cuda_agent.rl.batches import Built, Episode
from cuda_agent.rl.funnel import compiler_errors, funnel, step_metrics
from cuda_agent.rl.rollouts import Rollout, pack, spread
from cuda_agent.rl.stage_loop import Carried
from cuda_agent.rl.trainer import Trainer
from cuda_agent.rl.training_config import TrainConfig
from cuda_agent.runs.run_folder import read_json, write_text

_FREE_TO_CHANGE = ("run", "plan", "guards", "deviations")
"""Tables that a continued run may have changed: they change no number that was computed."""


def episode_facts(episodes: Sequence[Episode], built: Built) -> dict[str, Any]:
    """Metrics of a rollout batch, its funnel, its compiler errors, drop rates by length."""
    return {
        **step_metrics(episodes, built),
        "funnel": funnel(episodes, built.uses),
        "uses": built.counts(),
        "drop_rate_by_length": built.drop_rate_by_length(),
        "compiler_errors": compiler_errors(episodes),
    }


def note_rates(carried: Carried, built: Built) -> None:
    """Take in the last pass rate of each task of a batch."""
    outcomes: dict[str, list[bool]] = {}
    for rollout in built.rollouts:
        outcomes.setdefault(rollout.task, []).append(rollout.outcome > 0)
    carried.rates |= {task: sum(passed) / len(passed) for task, passed in outcomes.items()}


def num_batches(number: int, size: int) -> int:
    """Batches in an epoch."""
    return max(1, round(number / size))


def split(rollouts: Sequence[Rollout], held_out: float) -> tuple[list[Rollout], list[Rollout]]:
    """Rollouts to fit and to measure on; the same split in every process."""
    order = list(rollouts)
    random.Random(0).shuffle(order)
    number = min(len(order) - 1, round(len(order) * held_out)) if order else 0
    return order[number:], order[:number]


def against_task_means(
    trainer: Trainer, fitted: Sequence[Rollout], held_out: Sequence[Rollout]
) -> dict[str, float]:
    """Explained variance on held-out trajectories, of the critic and of each task's mean outcome."""
    both = pack([*fitted, *held_out])
    known = torch.arange(len(fitted))
    new = torch.arange(len(fitted), len(fitted) + len(held_out))
    batch = both.select(new)
    predictions = task_mean_predictions(
        batch.groups, known_outcomes=both.outcomes[known], known_groups=both.groups[known]
    )
    outcomes = spread(batch.outcomes, batch.acted_lengths)
    baseline = explained_variance(spread(predictions, batch.acted_lengths), outcomes)
    return {
        "explained_variance": trainer.explained(held_out),
        "explained_by_task_mean": float(baseline),
    }


def same_config(config: TrainConfig, path: Path) -> None:
    """Write the resolved configuration, or hold it against that of a run with a stage begun.

    Raises:
        UsageError: they differ in what decides the numbers.
    """
    now = json.loads(json.dumps(config.to_dict()))
    if path.is_file() and any(child.is_dir() for child in path.parent.iterdir()):
        before = read_json(path)
        changed = [
            f"{name}.{key}"
            for name in now
            if name not in _FREE_TO_CHANGE
            for key in now[name]
            if now[name][key] != before.get(name, {}).get(key)
        ]
        if changed or now["run"]["seed"] != before["run"]["seed"]:
            what = ", ".join(changed[:5]) or "run.seed"
            raise UsageError(
                f"{path.parent} was begun with another configuration: {what}", "Name a new --out."
            )
    write_text(path, json.dumps(now, indent=2) + "\n")


def stop_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end an answer, as sampling knows them."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    more = configured if isinstance(configured, list) else [configured]
    end = TokenSpace(tokenizer, ToolFormat.AUTO).end_of_answer()
    return frozenset(int(i) for i in (tokenizer.eos_token_id, end, *more) if i is not None)
