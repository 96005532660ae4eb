"""A transformer of one layer: small enough for float64, enumeration and finite differences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cuda_agent.rl.rollouts import PackedRollouts

PAD = 0


class Tiny(nn.Module):
    """Causal attention and an MLP over ``vocabulary`` ids; ``outputs`` numbers for each position."""

    def __init__(self, vocabulary: int, *, width: int = 16, max_length: int = 32, outputs: int | None = None):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(max_length, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, vocabulary if outputs is None else outputs)

    def forward(self, ids: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
        """Outputs [R, T, outputs] of ids and positions [R, T]; ``allowed`` [R, T, T] says who sees whom."""
        x = self.token(ids) + self.position(positions)
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        x = x + self.mix(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ self.value(x))
        return self.head(x + self.mlp(x))


def packed(model: Tiny, batch: PackedRollouts) -> Tensor:
    """Outputs [N, outputs], all trajectories in one row."""
    same = batch.trajectory[:, None] == batch.trajectory[None, :]
    allowed = same & (batch.positions[:, None] >= batch.positions[None, :])
    return model(batch.token_ids[None], batch.positions[None], allowed[None])[0]


def padded(model: Tiny, batch: PackedRollouts) -> Tensor:
    """Outputs [N, outputs], a trajectory a row."""
    rows = batch.padded(PAD)
    size = rows.token_ids.shape[1]
    positions = torch.arange(size).expand_as(rows.token_ids)
    causal = torch.ones(size, size, dtype=torch.bool).tril().expand(len(positions), -1, -1)
    return model(rows.token_ids, positions, causal).flatten(0, 1)[rows.index]
