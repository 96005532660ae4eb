"""Drawing a token for each row of a batch, each row by its own rules and its own random numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_agent.generation.contract import SamplingParams


class Dice:
    """Uniform numbers of one request: the same seed gives the same ones in any company."""

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def roll(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()


def row_logprobs(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Log-probabilities of the distributions that are sampled from.

    Args:
        logits: [B, V].
        params: of each row.

    Returns:
        [B, V], float32; ``-inf`` outside a row's nucleus. At temperature 0 those of temperature 1.
    """
    scaled = logits.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        heat = torch.tensor([p.temperature or 1.0 for p in params], device=logits.device)
        scaled = scaled / heat[:, None]
    logprobs = scaled.log_softmax(-1)
    if all(p.top_p >= 1.0 for p in params):
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    limits = torch.tensor([p.top_p if p.top_p < 1.0 else 2.0 for p in params], device=logits.device)
    outside = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= limits[:, None])
    return logprobs.masked_fill(outside, -torch.inf).log_softmax(-1)


def draw(
    logits: Tensor, params: Sequence[SamplingParams], dice: Sequence[Dice]
) -> tuple[list[int], list[float]]:
    """One token for each row, by inversion of its cumulative distribution (float64), and its log-probability.

    Args:
        logits: [B, V].
        params, dice: of each row.
    """
    logprobs = row_logprobs(logits, params)
    best = logprobs.argmax(-1)
    greedy = [p.temperature == 0.0 for p in params]
    if all(greedy):
        ids = best
    else:
        sums = logprobs.double().exp().cumsum(-1)
        rolled = torch.tensor([d.roll() for d in dice], dtype=torch.float64, device=logits.device)
        # right=True: an id of probability 0 is never the first whose sum lies above the number.
        found = torch.searchsorted(sums, (rolled * sums[:, -1])[:, None], right=True)[:, 0]
        found = found.clamp(max=logits.shape[-1] - 1)
        ids = torch.where(torch.tensor(greedy, device=logits.device), best, found)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()
