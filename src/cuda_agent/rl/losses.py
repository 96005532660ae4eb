"""Losses over acted tokens, as sums with explicit denominators, and their metrics.

A loss is the sum over tokens of share x (loss of the token) / num_trajectories, where the shares of one
trajectory's tokens add up to 1 (:func:`token_shares`): the mean over trajectories of the mean over tokens
(paper, section 4). Shares are computed once from whole trajectories and ``num_trajectories`` counts the
whole minibatch on all ranks, so the sum of the parts' gradients is the gradient, however the minibatch is cut
into micro-batches, packed, padded, or spread over ranks. Gradients of ranks are to be summed, not averaged:
where the machinery averages, multiply the loss by the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from cuda_agent.rl.rollouts import spread, with_zero
from cuda_agent.rl.statistics import Sums

_MAX_LOG_RATIO = 20.0
_FAR = (0.5, 2.0)


@dataclass(frozen=True)
class Clipping:
    """Bounds of the importance ratio.

    Attributes:
        low, high: the ratio is clipped to [1 - low, 1 + high] (paper: 0.2 and 0.28, as in DAPO).
        dual: with a negative advantage the loss of a token is at most this times its size (dual-clip PPO,
            arXiv 1912.09729); at least 1.
    """

    low: float = 0.2
    high: float = 0.28
    dual: float = 3.0


@dataclass(frozen=True)
class ActorTerms:
    """What the policy loss needs of each acted token, fixed for all epochs on a batch: [M] each.

    Attributes:
        advantages: whitened or not.
        denominator: log-probability under the policy that the ratio is against.
        importance: weight that corrects for the sampler's distribution; 1 without correction.
        shares: of :func:`token_shares`; 0 for a token left out.
    """

    advantages: Tensor
    denominator: Tensor
    importance: Tensor
    shares: Tensor

    def take(self, index: Tensor) -> Self:
        """The terms of some tokens (int64 [m])."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))


def token_shares(lengths: Tensor, kept: Tensor | None = None) -> Tensor:
    """1 over the kept acted tokens of a token's trajectory: float64 [M], 0 for one that is not kept.

    A trajectory without kept tokens contributes nothing.

    Args:
        lengths: int64 [B], acted tokens of each whole trajectory.
        kept: bool [M]; without it all are.
    """
    if kept is None:
        return spread(1.0 / lengths.clamp(min=1).double(), lengths)
    running = with_zero(kept.long().cumsum(0))
    ends = with_zero(lengths.cumsum(0))
    counts = running[ends[1:]] - running[ends[:-1]]
    return spread(1.0 / counts.clamp(min=1).double(), lengths) * kept


def policy_loss(
    logprobs: Tensor, terms: ActorTerms, *, num_trajectories: int, clipping: Clipping = Clipping()
) -> tuple[Tensor, Sums]:
    """PPO's clipped surrogate with a dual clip.

    Per token -A r, or with the clipped ratio where that is larger; at most ``dual`` |A| where A < 0; times
    the importance weight.

    Args:
        logprobs: of the acted tokens under the policy in training, [M], with gradient.
        terms: of the same tokens.
        num_trajectories: in the whole minibatch, on all ranks.

    Returns:
        The loss, and: ``policy_loss``, ``ratio``, ``ratio_max``, ``ratio_min``, ``ratio_outside`` (share of
        ratios outside [0.5, 2]), ``kl`` (of the denominator's policy from the new one, estimate r - 1 - log
        r), ``clip_low`` and ``clip_high`` (share of tokens without gradient because the ratio is below or
        above the bounds), ``clip_dual``, ``surprisal`` (mean -log p).
    """
    wide = logprobs if logprobs.dtype is torch.float64 else logprobs.float()
    kept = terms.shares > 0
    log_ratio = torch.where(kept, wide - terms.denominator.to(wide.dtype), 0.0)
    log_ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    advantages = terms.advantages.detach().to(wide.dtype)
    clipped = -advantages * ratio.clamp(1.0 - clipping.low, 1.0 + clipping.high)
    per_token = torch.maximum(-advantages * ratio, clipped)
    at_most = torch.where(advantages < 0, -advantages * clipping.dual, torch.inf)
    per_token = torch.minimum(per_token, at_most)
    weights = (terms.shares * terms.importance.detach() / num_trajectories).to(wide.dtype)
    loss = (weights * per_token).sum()
    sums = _ratio_sums(ratio, log_ratio, advantages, kept, clipping)
    surprisal = -torch.where(kept, wide.detach(), 0.0).double().sum()
    totals = {**sums.totals, "surprisal": surprisal}
    losses = {"policy_loss": loss.detach().double()}
    return loss, Sums(sums.count, totals, losses, sums.largest, sums.smallest)


def value_loss(
    values: Tensor, targets: Tensor, shares: Tensor, *, num_trajectories: int
) -> tuple[Tensor, Sums]:
    """Half the squared error (paper, section 4).

    Args:
        values: V before each acted token, [M], with gradient.
        targets: of :func:`cuda_agent.rl.advantages.value_targets`, [M].
        shares: of :func:`token_shares`, over all acted tokens, [M].
        num_trajectories: in the whole minibatch, on all ranks.

    Returns:
        The loss, and: ``value_loss``, ``value``, ``value_target``, ``value_error`` (mean magnitude).
    """
    wide = values if values.dtype is torch.float64 else values.float()
    error = wide - targets.detach().to(wide.dtype)
    loss = (shares.to(wide.dtype) / num_trajectories * 0.5 * error.square()).sum()
    totals = {
        "value": wide.detach().double().sum(),
        "value_target": targets.detach().double().sum(),
        "value_error": error.detach().double().abs().sum(),
    }
    return loss, Sums(_number(wide), totals, {"value_loss": loss.detach().double()})


def nll_loss(logprobs: Tensor, shares: Tensor, *, num_trajectories: int) -> tuple[Tensor, Sums]:
    """Negative log-likelihood of actions, for SFT and rejection fine-tuning.

    The paper sums over all tokens: ``shares`` of 1 everywhere, and ``num_trajectories`` as the size of the
    step that is wanted. With :func:`token_shares` every trajectory counts alike.

    Returns:
        The loss, and: ``nll_loss``, ``surprisal`` (mean -log p over tokens).
    """
    wide = logprobs if logprobs.dtype is torch.float64 else logprobs.float()
    loss = -(shares.to(wide.dtype) / num_trajectories * wide).sum()
    totals = {"surprisal": -wide.detach().double().sum()}
    return loss, Sums(_number(wide), totals, {"nll_loss": loss.detach().double()})


def entropy_bonus(entropies: Tensor, shares: Tensor, *, num_trajectories: int) -> tuple[Tensor, Sums]:
    """Mean entropy with the weights of the other losses, to be subtracted with a coefficient.

    Returns:
        The mean, and ``entropy`` (mean over tokens, nats).
    """
    wide = entropies if entropies.dtype is torch.float64 else entropies.float()
    bonus = (shares.to(wide.dtype) / num_trajectories * wide).sum()
    return bonus, Sums(_number(wide), {"entropy": wide.detach().double().sum()}, {})


def reference_kl_loss(
    logprobs: Tensor, reference_logprobs: Tensor, shares: Tensor, *, num_trajectories: int
) -> tuple[Tensor, Sums]:
    """KL of the policy from a reference (the disabled adapter): estimate exp(-d) - 1 + d, d = log p - log q.

    Never negative, and its gradient is right on the policy's own samples.

    Returns:
        The loss, and ``reference_kl`` (mean over tokens).
    """
    wide = logprobs if logprobs.dtype is torch.float64 else logprobs.float()
    gap = (wide - reference_logprobs.detach().to(wide.dtype)).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    per_token = (-gap).exp() - 1.0 + gap
    loss = (shares.to(wide.dtype) / num_trajectories * per_token).sum()
    return loss, Sums(_number(wide), {"reference_kl": per_token.detach().double().sum()}, {})


def sampler_gap(sampler: Tensor, recomputed: Tensor, kept: Tensor) -> Sums:
    """How far the trainer's log-probabilities are from the sampler's, before any update.

    Args:
        sampler, recomputed: [M].
        kept: bool [M], not below the probability floor.

    Returns:
        ``gap`` (mean |difference|), ``gap_outside`` (share of ratios outside [0.5, 2]) and ``gap_max`` over
        the kept tokens, and ``floored_tokens``, the number of others.
    """
    gap = torch.where(kept, recomputed.detach().double() - sampler.double(), 0.0)
    ratio = gap.exp()
    count = kept.double().sum()
    totals = {"gap": gap.abs().sum(), "gap_outside": _outside(ratio, kept)}
    return Sums(
        count, totals, {"floored_tokens": kept.numel() - count}, {"gap_max": _largest(gap.abs(), kept)}
    )


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of each id at temperature 1: [M] from logits [M, V], in float32 at least."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return wide.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def token_entropies(logits: Tensor) -> Tensor:
    """Entropy in nats of each distribution: [M] from logits [M, V]."""
    logprobs = (logits if logits.dtype is torch.float64 else logits.float()).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def _ratio_sums(
    ratio: Tensor, log_ratio: Tensor, advantages: Tensor, kept: Tensor, clipping: Clipping
) -> Sums:
    r, d = ratio.detach().double(), log_ratio.detach().double()
    gains = advantages > 0
    totals = {
        "ratio": (r * kept).sum(),
        "ratio_outside": _outside(r, kept),
        "kl": ((r - 1.0 - d) * kept).sum(),
        "clip_low": (kept & (advantages < 0) & (r < 1.0 - clipping.low)).double().sum(),
        "clip_high": (kept & gains & (r > 1.0 + clipping.high)).double().sum(),
        "clip_dual": (kept & (advantages < 0) & (r > clipping.dual)).double().sum(),
    }
    largest, smallest = {"ratio_max": _largest(r, kept)}, {"ratio_min": -_largest(-r, kept)}
    return Sums(kept.double().sum(), totals, {}, largest, smallest)


def _outside(ratio: Tensor, kept: Tensor) -> Tensor:
    low, high = _FAR
    return (kept & ((ratio < low) | (ratio > high))).double().sum()


def _largest(numbers: Tensor, kept: Tensor) -> Tensor:
    floor = numbers.new_full((1,), -torch.inf)
    return torch.cat([torch.where(kept, numbers, -torch.inf), floor]).amax()


def _number(numbers: Tensor) -> Tensor:
    return numbers.new_full((), float(numbers.numel()), dtype=torch.float64)
