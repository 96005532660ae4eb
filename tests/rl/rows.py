"""Random batches in both forms: packed tensors, and the rows of plain.py."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import torch
from plain import Row
from torch import Tensor


def random_rollouts(rl: Any, seed: int, *, num: int = 6, vocabulary: int = 12) -> list[Any]:
    """Several turns each, prompts and observations of any length between the acted runs."""
    chance = random.Random(seed)
    rollouts = []
    for _ in range(num):
        ids, acted, logprobs, turns = [], [], [], []
        for turn in range(chance.randint(1, 4)):
            given, sampled = chance.randint(1, 3), chance.randint(1, 4)
            ids += [chance.randrange(1, vocabulary) for _ in range(given + sampled)]
            acted += [False] * given + [True] * sampled
            logprobs += [0.0] * given + [chance.uniform(-4, -0.05) for _ in range(sampled)]
            turns += [turn] * (given + sampled)
        outcome = chance.choice([-1.0, 1.0, 2.0, 3.0])
        task = f"task{chance.randrange(3)}"
        rollouts.append(
            rl.rollouts.Rollout(task, tuple(ids), tuple(acted), tuple(logprobs), tuple(turns), outcome)
        )
    return rollouts


def random_batch(rl: Any, seed: int) -> tuple[Any, dict[str, Tensor], list[Row]]:
    """A packed batch; ``old``, ``new``, ``values``, ``new_values`` over acted tokens; the same as rows."""
    batch = rl.rollouts.pack(random_rollouts(rl, seed))
    noise = torch.Generator().manual_seed(seed)
    size = batch.sampler_logprobs.numel()

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(size, generator=noise, dtype=torch.float64)

    old = batch.sampler_logprobs + normal(0.5)
    found = {"old": old, "new": old + normal(0.5), "values": normal(1.0), "new_values": normal(1.0)}
    ends = [0, *batch.acted_lengths.cumsum(0).tolist()]
    rows = [
        Row(
            batch.sampler_logprobs[a:b].tolist(),
            *(found[name][a:b].tolist() for name in ("old", "new", "values", "new_values")),
            outcome=float(batch.outcomes[i]),
            task=int(batch.groups[i]),
        )
        for i, (a, b) in enumerate(pairwise(ends))
    ]
    return batch, found, rows
