"""Updates of actor and critic from rollouts: PPO, likelihood (SFT and RFT), value pretraining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cuda_agent.rl.advantages import explained_variance
from cuda_agent.rl.losses import (
    ActorTerms,
    entropy_bonus,
    nll_loss,
    policy_loss,
    reference_kl_loss,
    token_shares,
    value_loss,
)
from cuda_agent.rl.master import MasterAdamW
from cuda_agent.rl.networks import ACTOR, CRITIC, Networks
from cuda_agent.rl.ppo import (
    Estimates,
    PpoConfig,
    ValueTarget,
    actor_terms,
    critic_free,
    estimate,
    minibatches,
)
from cuda_agent.rl.rollouts import PackedRollouts, Rollout, pack, spread
from cuda_agent.rl.statistics import Sums, add, over_ranks

Metrics = dict[str, float]


@dataclass(frozen=True)
class TrainerOptions:
    """Settings of the updates.

    Attributes:
        ppo: of the maths.
        actor_lr, critic_lr: learning rates.
        num_minibatches: updates for each rollout batch and epoch.
        num_epochs: passes of PPO over a rollout batch.
        max_tokens: most tokens in one forward pass, unless one trajectory alone has more.
        max_grad_norm: gradients are cut to it.
        weight_decay: of AdamW.
        entropy, reference_kl: coefficients (0: measured only, or not at all).
        critic: ``False``: leave-one-out baseline instead.
        sum_tokens: the likelihood sums over tokens, as the paper does, not over trajectories' means.
    """

    ppo: PpoConfig = field(default_factory=PpoConfig)
    actor_lr: float = 3e-5
    critic_lr: float = 1e-4
    num_minibatches: int = 4
    num_epochs: int = 1
    max_tokens: int = 32_768
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    entropy: float = 0.0
    reference_kl: float = 0.0
    critic: bool = True
    sum_tokens: bool = False


class Trainer:
    """Networks and their optimisers.

    Where torch.distributed runs, every rank has the same weights and as many rollouts of its own: gradients
    are summed, whitening and metrics span all ranks, and the update is that of the whole batch on one.

    Args:
        networks: changed in place.
    """

    def __init__(self, networks: Networks, options: TrainerOptions) -> None:
        self.networks, self.options = networks, options
        decay = options.weight_decay
        self.actor = MasterAdamW(networks.actor_weights(), lr=options.actor_lr, weight_decay=decay)
        self.critic = MasterAdamW(networks.critic_weights(), lr=options.critic_lr, weight_decay=decay)
        self.device = networks.model.device

    def ppo_step(self, rollouts: Sequence[Rollout], *, seed: int, critic_only: bool = False) -> Metrics:
        """All updates from one rollout batch.

        Args:
            seed: of the split in minibatches.
            critic_only: the actor stays as it is.

        Returns:
            Metrics of the losses, ``explained_variance`` (before the update, so on trajectories that the
            critic has not seen), ``actor_norm``, ``critic_norm``, ``gap...``.
        """
        batch = pack(rollouts).to(self.device)
        recomputed, entropies = self._over(batch, self.networks.logprobs)
        metrics: Metrics = {"entropy": float(entropies.double().mean())}
        reference = None
        if self.options.reference_kl:
            (reference,) = self._over(batch, lambda part: (self.networks.reference_logprobs(part),))
        estimates = None
        if self.options.critic:
            (values,) = self._over(batch, lambda part: (self.networks.values(part),))
            metrics |= self._critic_facts(batch, values)
            estimates = estimate(batch, values, self.options.ppo)
            advantages = estimates.advantages
        else:
            advantages = critic_free(batch, self.options.ppo)
        metrics["advantage_size"] = float(advantages.abs().mean())
        terms, gap = actor_terms(batch, advantages, self.options.ppo, recomputed=recomputed)
        metrics |= {name: value for name, value in gap.means().items() if name != "tokens"}
        generator = torch.Generator().manual_seed(seed)
        return metrics | self._epochs(
            batch,
            terms,
            estimates=estimates,
            reference=reference,
            generator=generator,
            critic_only=critic_only,
        )

    def nll_step(self, rollouts: Sequence[Rollout]) -> Metrics:
        """One update towards the acted tokens."""
        batch = pack(rollouts).to(self.device)
        count = over_ranks(batch.num_trajectories)
        shares = token_shares(batch.acted_lengths)
        if self.options.sum_tokens:
            shares = torch.ones_like(shares)

        def loss(part: PackedRollouts, index: Tensor) -> tuple[Tensor, Sums]:
            logprobs, _ = self.networks.logprobs(part)
            return nll_loss(logprobs, shares[index], num_trajectories=count)

        metrics = self._accumulate(batch, torch.arange(batch.num_trajectories), ACTOR, loss)
        return metrics | {"actor_norm": self.actor.step(max_norm=self.options.max_grad_norm)}

    def value_step(self, rollouts: Sequence[Rollout]) -> Metrics:
        """One update of the critic alone, towards its targets as they are now."""
        batch = pack(rollouts).to(self.device)
        estimates = self._estimates(batch)
        return self._critic_update(batch, torch.arange(batch.num_trajectories), estimates)

    def start_critic(self, mean_outcome: float) -> None:
        """See :meth:`cuda_agent.rl.networks.Networks.start_critic`."""
        self.networks.start_critic(mean_outcome)
        self.critic.take_weights()

    def load_weights(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Weights of another stage; what is not in ``state`` stays, and so does the optimisers' memory."""
        head = {"value_head": self.networks.value_head.state_dict()}
        self.networks.load({**head, **state})
        self.actor.take_weights()
        self.critic.take_weights()

    def values_of(self, rollouts: Sequence[Rollout]) -> tuple[PackedRollouts, Tensor]:
        """A batch and V before each of its acted tokens [M], without gradient."""
        batch = pack(rollouts).to(self.device)
        (values,) = self._over(batch, lambda part: (self.networks.values(part),))
        return batch, values

    def explained(self, rollouts: Sequence[Rollout]) -> float:
        """Explained variance of the outcome, on trajectories that are held out; NaN where it is constant."""
        batch, values = self.values_of(rollouts)
        return self._critic_facts(batch, values)["explained_variance"]

    def state_dict(self) -> dict[str, Any]:
        """Weights that are trained, and optimisers."""
        return {
            "networks": self.networks.state(),
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.networks.load(state["networks"])
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])

    # -- inside ----------------------------------------------------------------------------------------

    def _epochs(
        self,
        batch: PackedRollouts,
        terms: ActorTerms,
        *,
        estimates: Estimates | None,
        reference: Tensor | None,
        generator: torch.Generator,
        critic_only: bool,
    ) -> Metrics:
        metrics: list[Metrics] = []
        for epoch in range(self.options.num_epochs):
            if epoch and estimates and self.options.ppo.value_target is ValueTarget.PAPER:
                estimates = replace(self._estimates(batch), advantages=estimates.advantages)
            for part in minibatches(batch.num_trajectories, self.options.num_minibatches, generator):
                found: Metrics = {}
                if not critic_only:
                    found |= self._actor_update(batch, part, terms, reference)
                if estimates is not None:
                    found |= self._critic_update(batch, part, estimates)
                metrics.append(found)
        return _merged(metrics)

    def _actor_update(
        self, batch: PackedRollouts, part: Tensor, terms: ActorTerms, reference: Tensor | None
    ) -> Metrics:
        options, count = self.options, over_ranks(len(part))

        def loss(some: PackedRollouts, index: Tensor) -> tuple[Tensor, Sums]:
            logprobs, entropies = self.networks.logprobs(some)
            taken = terms.take(index)
            total, sums = policy_loss(logprobs, taken, num_trajectories=count, clipping=options.ppo.clipping)
            if options.entropy:
                total = (
                    total
                    - options.entropy * entropy_bonus(entropies, taken.shares, num_trajectories=count)[0]
                )
            if reference is not None:
                kl, found = reference_kl_loss(
                    logprobs, reference[index], taken.shares, num_trajectories=count
                )
                total = total + options.reference_kl * kl
                sums = replace(sums, totals={**sums.totals, **found.totals})
            return total, sums

        metrics = self._accumulate(batch, part, ACTOR, loss)
        return metrics | {"actor_norm": self.actor.step(max_norm=options.max_grad_norm)}

    def _critic_update(self, batch: PackedRollouts, part: Tensor, estimates: Estimates) -> Metrics:
        count = over_ranks(len(part))

        def loss(some: PackedRollouts, index: Tensor) -> tuple[Tensor, Sums]:
            values = self.networks.values(some)
            return value_loss(
                values, estimates.targets[index], estimates.shares[index], num_trajectories=count
            )

        metrics = self._accumulate(batch, part, CRITIC, loss)
        return metrics | {"critic_norm": self.critic.step(max_norm=self.options.max_grad_norm)}

    def _accumulate(
        self,
        batch: PackedRollouts,
        part: Tensor,
        name: str,
        loss: Callable[[PackedRollouts, Tensor], tuple[Tensor, Sums]],
    ) -> Metrics:
        """Gradients of a minibatch, summed over forward passes of bounded size."""
        found = []
        for some in self._chunks(batch, part):
            with self.networks.backward_of(name):
                total, sums = loss(batch.select(some), batch.acted_of(some))
                total.backward()
            found.append(sums)
        return add(found).across_ranks().means()

    def _estimates(self, batch: PackedRollouts) -> Estimates:
        (values,) = self._over(batch, lambda part: (self.networks.values(part),))
        return estimate(batch, values, self.options.ppo)

    def _over(
        self, batch: PackedRollouts, compute: Callable[[PackedRollouts], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Outputs [M] over a whole batch without gradient, in passes of bounded size."""
        everything = torch.arange(batch.num_trajectories)
        with torch.no_grad():
            parts = [compute(batch.select(some)) for some in self._chunks(batch, everything)]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _chunks(self, batch: PackedRollouts, trajectories: Tensor) -> Iterator[Tensor]:
        """Trajectories in order, as many at a time as ``max_tokens`` allows."""
        chunk: list[int] = []
        size = 0
        lengths = batch.lengths.tolist()
        for one in trajectories.tolist():
            if chunk and size + lengths[one] > self.options.max_tokens:
                yield torch.tensor(chunk, device=self.device)
                chunk, size = [], 0
            chunk.append(one)
            size += lengths[one]
        if chunk:
            yield torch.tensor(chunk, device=self.device)

    def _critic_facts(self, batch: PackedRollouts, values: Tensor) -> Metrics:
        outcomes = spread(batch.outcomes, batch.acted_lengths)
        return {"explained_variance": float(explained_variance(values, outcomes))}


def _merged(metrics: Sequence[Metrics]) -> Metrics:
    """Means over the updates of a step; extremes and counts as such."""
    names = dict.fromkeys(name for found in metrics for name in found)
    merged: Metrics = {}
    for name in names:
        numbers = [found[name] for found in metrics if name in found]
        if name.endswith("_max"):
            merged[name] = max(numbers)
        elif name.endswith("_min"):
            merged[name] = min(numbers)
        elif name == "tokens":
            merged[name] = sum(numbers)
        else:
            merged[name] = sum(numbers) / len(numbers)
    return merged
