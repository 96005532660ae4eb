"""Rollouts in token space, packed end to end.

Words: N tokens in all, B trajectories, M acted tokens (sampled by the policy; the rest are prompts and
observations). "Over acted tokens" means a tensor [M] in the order of the packed batch. The model says at
position t - 1 what comes at t: log-probability, entropy and V(s_t) of an acted token are read at
``predictor_index``, the position before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rollout:
    """One trajectory as ids.

    Attributes:
        task: what was attempted; trajectories of one task form a group.
        token_ids: prompt, answers and observations in order.
        acted: sampled by the policy, for each token. The first token never is.
        logprobs: the sampler's log-probability for each token, 0 where not acted.
        turns: index of the turn each token belongs to.
        outcome: reward of the whole trajectory.
        policy_versions: versions of the weights that sampled it, in order of first use.
    """

    task: str
    token_ids: tuple[int, ...]
    acted: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turns: tuple[int, ...]
    outcome: float
    policy_versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.acted), len(self.logprobs), len(self.turns)}
        if len(lengths) != 1:
            raise ValueError(f"a rollout's columns differ in length: {sorted(lengths)}")
        if not any(self.acted):
            raise ValueError("a rollout without acted tokens")
        if self.acted[0]:
            raise ValueError("the first token of a rollout cannot be acted: nothing comes before it")


@dataclass(frozen=True)
class Padded:
    """The same batch as rows of equal length, for models without packed attention.

    Attributes:
        token_ids: int64 [B, T], padded on the right.
        attention_mask: int64 [B, T], 0 on padding.
        index: int64 [N], place of each packed token in the flattened rows: a model's output [B, T, ...]
            becomes packed by ``output.flatten(0, 1)[index]``.
    """

    token_ids: Tensor
    attention_mask: Tensor
    index: Tensor


@dataclass(frozen=True)
class PackedRollouts:
    """Trajectories end to end.

    Attributes:
        token_ids: int64 [N].
        acted: bool [N].
        sampler_logprobs: float32 or float64 [M], over acted tokens.
        turns: int64 [M], turn of each acted token.
        lengths: int64 [B], tokens of each trajectory.
        outcomes: float64 [B], rewards.
        groups: int64 [B], the same number for trajectories of the same task.
    """

    token_ids: Tensor
    acted: Tensor
    sampler_logprobs: Tensor
    turns: Tensor
    lengths: Tensor
    outcomes: Tensor
    groups: Tensor

    @property
    def num_trajectories(self) -> int:
        """B."""
        return int(self.lengths.numel())

    @cached_property
    def offsets(self) -> Tensor:
        """int64 [B + 1]: where each trajectory begins, and N (``cu_seqlens`` of packed attention)."""
        return with_zero(self.lengths.cumsum(0))

    @cached_property
    def trajectory(self) -> Tensor:
        """int64 [N]: trajectory of each token."""
        return spread(torch.arange(self.num_trajectories, device=self.lengths.device), self.lengths)

    @cached_property
    def positions(self) -> Tensor:
        """int64 [N]: position of each token in its own trajectory."""
        return torch.arange(self.token_ids.numel(), device=self.lengths.device) - spread(
            self.offsets[:-1], self.lengths
        )

    @cached_property
    def acted_index(self) -> Tensor:
        """int64 [M]: places of the acted tokens."""
        return self.acted.nonzero().flatten()

    @property
    def predictor_index(self) -> Tensor:
        """int64 [M]: the position before each acted token, where the model predicts it and V is read."""
        return self.acted_index - 1

    def before_acted(self, outputs: Tensor) -> Tensor:
        """A model's outputs by position, [N, ...], where it predicts each acted token: [M, ...].

        Of hidden states this gives what log-probabilities, entropies and V(s_t) are computed from, so that
        logits are never made for other positions.
        """
        return outputs[self.predictor_index]

    @cached_property
    def acted_ids(self) -> Tensor:
        """int64 [M]: ids of the acted tokens."""
        return self.token_ids[self.acted_index]

    @cached_property
    def acted_trajectory(self) -> Tensor:
        """int64 [M]: trajectory of each acted token."""
        return self.trajectory[self.acted_index]

    @cached_property
    def acted_lengths(self) -> Tensor:
        """int64 [B]: acted tokens of each trajectory."""
        return torch.bincount(self.acted_trajectory, minlength=self.num_trajectories)

    def acted_of(self, trajectories: Tensor) -> Tensor:
        """Places [m] in tensors over acted tokens of some trajectories (int64 [b]), in their order."""
        return _ranges(with_zero(self.acted_lengths.cumsum(0)), self.acted_lengths, trajectories)

    def select(self, trajectories: Tensor) -> PackedRollouts:
        """The batch of some trajectories (int64 [b]), in their order."""
        tokens = _ranges(self.offsets, self.lengths, trajectories)
        acted = self.acted_of(trajectories)
        return PackedRollouts(
            token_ids=self.token_ids[tokens],
            acted=self.acted[tokens],
            sampler_logprobs=self.sampler_logprobs[acted],
            turns=self.turns[acted],
            lengths=self.lengths[trajectories],
            outcomes=self.outcomes[trajectories],
            groups=self.groups[trajectories],
        )

    def padded(self, pad_id: int) -> Padded:
        """Rows of equal length, padded on the right with ``pad_id``."""
        rows, columns = self.num_trajectories, int(self.lengths.max())
        index = self.trajectory * columns + self.positions
        ids = torch.full((rows * columns,), pad_id, dtype=torch.int64, device=self.token_ids.device)
        mask = torch.zeros_like(ids)
        ids[index] = self.token_ids
        mask[index] = 1
        return Padded(ids.view(rows, columns), mask.view(rows, columns), index)

    def to(self, device: torch.device | str) -> PackedRollouts:
        """The batch on a device."""
        return PackedRollouts(
            *(
                getattr(self, name).to(device)
                for name in (
                    "token_ids",
                    "acted",
                    "sampler_logprobs",
                    "turns",
                    "lengths",
                    "outcomes",
                    "groups",
                )
            )
        )


def pack(rollouts: Sequence[Rollout]) -> PackedRollouts:
    """Rollouts as one batch, on the CPU.

    Raises:
        ValueError: no rollouts.
    """
    if not rollouts:
        raise ValueError("no rollouts to pack")
    acted = torch.tensor([a for r in rollouts for a in r.acted], dtype=torch.bool)
    group_of = {task: number for number, task in enumerate(dict.fromkeys(r.task for r in rollouts))}
    logprobs = torch.tensor([p for r in rollouts for p in r.logprobs], dtype=torch.float64)
    turns = torch.tensor([t for r in rollouts for t in r.turns], dtype=torch.int64)
    return PackedRollouts(
        token_ids=torch.tensor([i for r in rollouts for i in r.token_ids], dtype=torch.int64),
        acted=acted,
        sampler_logprobs=logprobs[acted],
        turns=turns[acted],
        lengths=torch.tensor([len(r.token_ids) for r in rollouts], dtype=torch.int64),
        outcomes=torch.tensor([r.outcome for r in rollouts], dtype=torch.float64),
        groups=torch.tensor([group_of[r.task] for r in rollouts], dtype=torch.int64),
    )


def spread(per_trajectory: Tensor, lengths: Tensor) -> Tensor:
    """Values [B] repeated over the tokens of each trajectory: [sum of lengths]."""
    return per_trajectory.repeat_interleave(lengths)


def with_zero(sums: Tensor) -> Tensor:
    """Running sums [B] with a zero before them: [B + 1]."""
    return torch.cat([sums.new_zeros(1), sums])


def _ranges(offsets: Tensor, lengths: Tensor, chosen: Tensor) -> Tensor:
    """Concatenated ranges offsets[i] .. offsets[i] + lengths[i] for each chosen i."""
    sizes = lengths[chosen]
    within = torch.arange(int(sizes.sum()), device=offsets.device) - spread(
        with_zero(sizes.cumsum(0))[:-1], sizes
    )
    return spread(offsets[:-1][chosen], sizes) + within
