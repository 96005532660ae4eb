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
from cuda_agent.rl.ranks import check_same_batch, divide, num_ranks, sum_over_ranks, this_rank
from cuda_agent.rl.rollouts import PackedRollouts, Rollout, pack, spread
from cuda_agent.rl.statistics import Sums, add

Metrics = dict[str, float]

_NOTHING = Rollout("", token_ids=(0, 0), acted=(False, True), logprobs=(0.0, 0.0), turns=(0, 0), outcome=0.0)
"""What an empty pass runs on."""


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

    Where torch.distributed runs, every rank makes the same calls with the whole batch: the trainer divides
    the forward passes, gradients are summed, and updates and metrics are those of one process, within
    rounding. Minibatches do not depend on the number of ranks, so a state goes on at any. Weights are whole
    on every rank or sharded (``NetworkOptions.shard``).

    Args:
        networks: changed in place.
    """

    def __init__(self, networks: Networks, options: TrainerOptions) -> None:
        self.networks, self.options = networks, options
        decay = options.weight_decay
        self.actor = MasterAdamW(networks.actor_weights(), lr=options.actor_lr, weight_decay=decay)
        self.critic = MasterAdamW(networks.critic_weights(), lr=options.critic_lr, weight_decay=decay)
        self.device = networks.model.device
        self._empty = pack([_NOTHING]).to(self.device)
        self._first = torch.zeros(1, dtype=torch.int64, device=self.device)

    def ppo_step(self, rollouts: Sequence[Rollout], *, seed: int, critic_only: bool = False) -> Metrics:
        """All updates from one rollout batch.

        Args:
            seed: of the split in minibatches.
            critic_only: the actor stays as it is.

        Returns:
            Metrics of the losses, ``explained_variance`` (before the update, so on trajectories that the
            critic has not seen), ``actor_norm``, ``critic_norm``, ``gap...``.
        """
        batch = self._packed(rollouts)
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
        batch = self._packed(rollouts)
        count = batch.num_trajectories
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
        batch = self._packed(rollouts)
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
        batch = self._packed(rollouts)
        (values,) = self._over(batch, lambda part: (self.networks.values(part),))
        return batch, values

    def explained(self, rollouts: Sequence[Rollout]) -> float:
        """Explained variance of the outcome, on trajectories that are held out; NaN where it is constant."""
        batch, values = self.values_of(rollouts)
        return self._critic_facts(batch, values)["explained_variance"]

    def state_dict(self) -> dict[str, Any]:
        """Weights that are trained, and optimisers, as whole tensors.

        All ranks must call; of sharded weights rank 0 alone has the numbers, and it is the one to write them.
        """
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
        options, count = self.options, len(part)

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
        count = len(part)

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
        """Gradients of a minibatch, summed over this rank's forward passes, each of bounded size.

        A rank that has fewer passes than others makes empty ones, of weight 0: a sharded network is gathered
        by all ranks at once.
        """
        found = []
        for some in self._passes(batch, part):
            with self.networks.backward_of(name):
                if some is None:
                    total, sums = loss(self._empty, self._first)
                    total, sums = 0.0 * total, sums.nothing()
                else:
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
        """Outputs [M] over a whole batch without gradient, from the passes of all ranks."""
        whole: tuple[Tensor, ...] = ()
        with torch.no_grad():
            for some in self._passes(batch, torch.arange(batch.num_trajectories)):
                columns = compute(self._empty if some is None else batch.select(some))
                whole = whole or tuple(column.new_zeros(batch.acted_ids.numel()) for column in columns)
                for column, into in zip(columns, whole, strict=True):
                    if some is not None:
                        into[batch.acted_of(some)] = column
        return tuple(sum_over_ranks(column) for column in whole)

    def _passes(self, batch: PackedRollouts, trajectories: Tensor) -> Iterator[Tensor | None]:
        """This rank's forward passes, as many as every other's; ``None`` is an empty one."""
        division = divide(
            batch.lengths.tolist(),
            trajectories.tolist(),
            max_tokens=self.options.max_tokens,
            num_ranks=num_ranks(),
        )
        for some in division[this_rank()]:
            yield torch.tensor(some, device=self.device) if some else None

    def _packed(self, rollouts: Sequence[Rollout]) -> PackedRollouts:
        batch = pack(rollouts).to(self.device)
        check_same_batch(batch)
        return batch

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
