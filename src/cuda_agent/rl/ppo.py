"""PPO for whole trajectories with a critic: from a batch of rollouts to losses. Pure functions over tensors.

One step of a trainer::

    batch = pack(rollouts)                                  # B trajectories, M acted tokens
    logprobs, values = ...                                  # recomputed by the trainer, no gradient, [M]
    estimates = estimate(batch, values, config)             # advantages, value targets
    terms, gap = actor_terms(batch, estimates.advantages, config, recomputed=logprobs)
    for part in minibatches(batch.num_trajectories, 4, generator):
        for some in part.split(micro_batch_size):
            data, index = batch.select(some), batch.acted_of(some)
            loss, sums = policy_loss(new_logprobs, terms.take(index), num_trajectories=len(part))
            loss.backward()
        optimizer.step()

and likewise ``value_loss(new_values, estimates.targets[index], estimates.shares[index], ...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from cuda_agent.rl.advantages import (
    ALPHA,
    Moments,
    gae,
    leave_one_out,
    length_adaptive_lambda,
    outcome_rewards,
    value_targets,
    whiten,
)
from cuda_agent.rl.losses import ActorTerms, Clipping, policy_loss, sampler_gap, token_shares, value_loss
from cuda_agent.rl.rollouts import PackedRollouts, Rollout, pack, spread
from cuda_agent.rl.statistics import Sums

__all__ = [
    "PAPER",
    "SMALL",
    "Estimates",
    "PpoConfig",
    "RatioMode",
    "Rollout",
    "ValueTarget",
    "actor_terms",
    "critic_free",
    "estimate",
    "minibatches",
    "pack",
    "policy_loss",
    "value_loss",
]


class RatioMode(StrEnum):
    """What the importance ratio is against.

    ``SAMPLER``: the log-probabilities that the sampler recorded; the paper's collapse lives here, since
    sampler and trainer compute them in different precision. ``DECOUPLED``: those that the trainer recomputes
    before its first update, with a truncated weight for the difference to the sampler.
    """

    SAMPLER = "sampler"
    DECOUPLED = "decoupled"


class ValueTarget(StrEnum):
    """What the critic is fitted to.

    ``MC``: the outcome (lambda 1). ``PAPER``: V + GAE at ``paper_lambda``, recomputed in each epoch.
    """

    MC = "mc"
    PAPER = "paper"


@dataclass(frozen=True)
class PpoConfig:
    """Settings of the maths. Paper: arXiv 2602.24286, section 4."""

    ratio: RatioMode = RatioMode.DECOUPLED
    """What the importance ratio is against."""
    clipping: Clipping = field(default_factory=Clipping)
    """Bounds of the ratio."""
    truncation: float = 2.0
    """Largest weight for the difference between trainer and sampler (decoupled)."""
    probability_floor: float = 0.0
    """Tokens that the sampler gave less probability than this leave the policy loss and its denominator."""
    gamma: float = 1.0
    """Discount for each acted token (paper: 1)."""
    actor_lambda: float | None = None
    """Lambda of the advantages (paper: 0.95); ``None``: 1 - 1 / (alpha L) by the trajectory's length."""
    alpha: float = ALPHA
    """Of the length-adaptive lambda."""
    value_target: ValueTarget = ValueTarget.MC
    """What the critic is fitted to."""
    paper_lambda: float = 0.95
    """Lambda of the value target ``PAPER``."""
    whiten: bool = True
    """Give advantages mean 0 and deviation 1 over the batch's acted tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", RatioMode(self.ratio))
        object.__setattr__(self, "value_target", ValueTarget(self.value_target))
        checks = {
            "truncation must be at least 1": self.truncation >= 1,
            "probability_floor must be at least 0 and below 1": 0 <= self.probability_floor < 1,
            "gamma must be above 0 and at most 1": 0 < self.gamma <= 1,
            "actor_lambda must be between 0 and 1": self.actor_lambda is None or 0 <= self.actor_lambda <= 1,
            "paper_lambda must be between 0 and 1": 0 <= self.paper_lambda <= 1,
            "alpha must be above 0": self.alpha > 0,
            "clipping.low must be between 0 and 1": 0 < self.clipping.low < 1,
            "clipping.high must be above 0": self.clipping.high > 0,
            "clipping.dual must be above 1 + clipping.high": self.clipping.dual > 1 + self.clipping.high,
        }
        for problem, holds in checks.items():
            if not holds:
                raise ValueError(problem)


PAPER = PpoConfig(ratio=RatioMode.SAMPLER, actor_lambda=0.95, value_target=ValueTarget.PAPER)
"""The paper's values (whitening is not stated there)."""

SMALL = PpoConfig(probability_floor=1e-6)
"""Ours for small models: recomputed denominators, length-adaptive lambda, a floor, ``mc`` targets."""


@dataclass(frozen=True)
class Estimates:
    """Over acted tokens, float64 [M] each, without gradient.

    Attributes:
        advantages: for the actor.
        targets: for the critic.
        shares: token shares of the value loss (all acted tokens).
    """

    advantages: Tensor
    targets: Tensor
    shares: Tensor


def estimate(batch: PackedRollouts, values: Tensor, config: PpoConfig) -> Estimates:
    """Advantages and value targets of a whole rollout batch (on this rank).

    Whitening spans all ranks where torch.distributed runs.

    Args:
        values: [M], V before each acted token, by the critic as it was before the first update.
    """
    lengths = batch.acted_lengths
    rewards = outcome_rewards(batch.outcomes, lengths)
    lam: float | Tensor
    if config.actor_lambda is None:
        lam = length_adaptive_lambda(lengths, alpha=config.alpha)
    else:
        lam = config.actor_lambda
    advantages = gae(rewards, values, lengths, gamma=config.gamma, lam=lam)
    target_lambda = 1.0 if config.value_target is ValueTarget.MC else config.paper_lambda
    targets = value_targets(rewards, values, lengths, gamma=config.gamma, lam=target_lambda)
    return Estimates(_whitened(advantages, batch, config), targets, token_shares(lengths))


def critic_free(batch: PackedRollouts, config: PpoConfig) -> Tensor:
    """Advantages [M] without a critic: the leave-one-out baseline of each trajectory's task."""
    per_trajectory = leave_one_out(batch.outcomes, batch.groups)
    return _whitened(spread(per_trajectory, batch.acted_lengths), batch, config)


def actor_terms(
    batch: PackedRollouts, advantages: Tensor, config: PpoConfig, *, recomputed: Tensor
) -> tuple[ActorTerms, Sums]:
    """What stays fixed in the policy loss over all minibatches of a batch.

    Args:
        advantages: [M].
        recomputed: [M], the trainer's log-probabilities before the first update.

    Returns:
        The terms, and how far the trainer is from the sampler (``gap``, ``gap_outside``, ``gap_max``,
        ``floored_tokens``, ``truncated``: share of weights cut at the truncation).
    """
    sampler = batch.sampler_logprobs.double()
    recomputed = recomputed.detach().double()
    kept = sampler.exp() >= config.probability_floor
    gap = sampler_gap(sampler, recomputed, kept)
    if config.ratio is RatioMode.SAMPLER:
        denominator, importance = sampler, torch.ones_like(sampler)
    else:
        denominator = recomputed
        importance = torch.where(kept, (recomputed - sampler).exp(), 0.0)
    cut = (importance > config.truncation).double().sum()
    importance = importance.clamp(max=config.truncation)
    shares = token_shares(batch.acted_lengths, kept)
    sums = Sums(gap.count, {**gap.totals, "truncated": cut}, gap.losses, gap.largest)
    return ActorTerms(advantages, denominator, importance, shares), sums


def minibatches(
    num_trajectories: int, num_minibatches: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """A random split of all trajectories in near equal parts: int64 [b] each, none empty."""
    order = torch.randperm(num_trajectories, generator=generator)
    return (part for part in order.tensor_split(num_minibatches) if part.numel())


def _whitened(advantages: Tensor, batch: PackedRollouts, config: PpoConfig) -> Tensor:
    if not config.whiten:
        return advantages
    return whiten(advantages, Moments.of(advantages, batch.outcomes).across_ranks())
