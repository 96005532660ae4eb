"""Advantages, value targets and baselines, over acted tokens only.

All tensors [M] run over the acted tokens of B trajectories end to end; ``lengths`` [B] says how many each
has (zeros allowed). Observation tokens are not in them: value and advantage pass over an observation as if
it were not there, so V_end of one turn is V at the first acted token of the next. Arithmetic is in float64,
since lambda 1 sums as many terms as a trajectory has tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent.rl.rollouts import spread, with_zero

ALPHA = 0.05
# Advantages of a float32 critic differ by this share of the outcomes' size when it is exactly right.
_ROUNDING = 1e-6
_SHORT = 16


def outcome_rewards(outcomes: Tensor, lengths: Tensor) -> Tensor:
    """Rewards [M]: the outcome [B] at each trajectory's last acted token, 0 elsewhere (paper, section 3)."""
    rewards = torch.zeros(int(lengths.sum()), dtype=torch.float64, device=lengths.device)
    some = lengths > 0
    rewards[lengths.cumsum(0)[some] - 1] = outcomes[some].double()
    return rewards


def gae(
    rewards: Tensor, values: Tensor, lengths: Tensor, *, gamma: float = 1.0, lam: float | Tensor
) -> Tensor:
    """Generalised advantage estimates (arXiv 1506.02438), V after the last acted token being 0.

    A_t = sum over l of (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t. Discounts count
    acted tokens. No loop over time: see :func:`_decayed_sums`.

    Args:
        rewards, values: [M]; ``values[t]`` is V before acted token t.
        lengths: int64 [B].
        gamma: discount (paper: 1).
        lam: lambda, or one for each trajectory [B] (:func:`length_adaptive_lambda`).

    Returns:
        float64 [M], without gradient.
    """
    values = values.detach().double()
    goes_on = _goes_on(lengths)
    following = torch.cat([values[1:], values.new_zeros(1)]) * goes_on
    deltas = rewards.double() + gamma * following - values
    if not isinstance(lam, Tensor):
        lam = torch.full((), lam, dtype=torch.float64, device=values.device).expand(lengths.numel())
    return _decayed_sums(deltas, spread(gamma * lam.double(), lengths) * goes_on)


def returns(rewards: Tensor, lengths: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Discounted sums of rewards from each acted token on: float64 [M]."""
    return _decayed_sums(rewards.double(), gamma * _goes_on(lengths))


def value_targets(
    rewards: Tensor, values: Tensor, lengths: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> Tensor:
    """V + GAE(lam): what the critic is fitted to, float64 [M].

    At lambda 1 (``mc``) it is the return itself and does not depend on ``values``. The paper's target has
    lambda 0.95 and is to be computed anew from the critic's values in each epoch (section 4).
    """
    if lam == 1.0:
        return returns(rewards, lengths, gamma=gamma)
    return values.detach().double() + gae(rewards, values, lengths, gamma=gamma, lam=lam)


def length_adaptive_lambda(lengths: Tensor, *, alpha: float = ALPHA) -> Tensor:
    """lambda = 1 - 1 / (alpha L) for each trajectory of L acted tokens (VAPO, arXiv 2504.05118), at least 0.

    The outcome then reaches back over a share of the trajectory that does not shrink with its length: at a
    fixed 0.95 only the last 90 acted tokens see more than 1 % of it. With alpha 0.05 a trajectory of 20
    tokens or fewer gets 0: such short ones need a fixed lambda.
    """
    return (1.0 - 1.0 / (alpha * lengths.clamp(min=1).double())).clamp(min=0.0)


def leave_one_out(outcomes: Tensor, groups: Tensor) -> Tensor:
    """Outcome less the mean outcome of the group's other trajectories: float64 [B]; 0 in a group of one.

    The critic-free baseline (RLOO, arXiv 2402.14740).
    """
    rewards = outcomes.double()
    sums, counts = _group_sums(rewards, groups)
    others = (counts[groups] - 1).clamp(min=1)
    advantage = rewards - (sums[groups] - rewards) / others
    return torch.where(counts[groups] > 1, advantage, torch.zeros_like(advantage))


def task_mean_predictions(groups: Tensor, *, known_outcomes: Tensor, known_groups: Tensor) -> Tensor:
    """Mean outcome of each trajectory's task among known trajectories, else the mean over all: [B].

    The predictor that a critic must beat: it knows the task and nothing of the trajectory. Known
    trajectories are those the critic was trained on; predictions are for others.
    """
    size = int(torch.cat([groups, known_groups]).max()) + 1
    sums, counts = _group_sums(known_outcomes.double(), known_groups, size)
    overall = known_outcomes.double().mean()
    means = torch.where(counts > 0, sums / counts.clamp(min=1), overall)
    return means[groups]


def explained_variance(predictions: Tensor, outcomes: Tensor) -> Tensor:
    """1 - Var(outcome - prediction) / Var(outcome): float64 [], NaN where the outcome does not vary.

    Both [M] (the outcome spread over its acted tokens) or [B]. Always against the outcome on trajectories
    that the critic was not fitted to: against its own lambda target an empty critic scores 0.93.
    """
    outcomes = outcomes.double()
    variance = outcomes.var(correction=0)
    left = (outcomes - predictions.detach().double()).var(correction=0)
    return torch.where(variance > 0, 1.0 - left / variance, torch.nan)


@dataclass(frozen=True)
class Moments:
    """Of numbers on all ranks: float64 [] each.

    Attributes:
        count, total, squares: number, sum and sum of squares.
        scale: magnitude against which differences between the numbers are rounding.
    """

    count: Tensor
    total: Tensor
    squares: Tensor
    scale: Tensor

    @classmethod
    def of(cls, numbers: Tensor, computed_from: Tensor | None = None) -> Moments:
        """Of one rank's numbers; their scale is that of what they are differences of, if larger."""
        x = numbers.detach().double()
        both = x if computed_from is None else torch.cat([x, computed_from.detach().double()])
        scale = both.abs().max() if both.numel() else x.new_zeros(())
        return cls(x.new_tensor(float(x.numel())), x.sum(), x.square().sum(), scale)

    def across_ranks(self) -> Moments:
        """Of all ranks' numbers, where torch.distributed runs; else unchanged."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        sums = torch.stack([self.count, self.total, self.squares])
        scale = self.scale.clone()
        torch.distributed.all_reduce(sums)
        torch.distributed.all_reduce(scale, op=torch.distributed.ReduceOp.MAX)
        return Moments(sums[0], sums[1], sums[2], scale)


def whiten(advantages: Tensor, moments: Moments | None = None) -> Tensor:
    """Advantages [M] with mean 0 and standard deviation 1 over the acted tokens of the whole batch.

    Numbers that are equal but for rounding become exactly 0, never noise of size 1 and never NaN.

    Args:
        moments: over all ranks' advantages; without it, of these.
    """
    moments = moments or Moments.of(advantages)
    count = moments.count.clamp(min=1)
    mean = moments.total / count
    deviation = (moments.squares / count - mean.square()).clamp(min=0).sqrt()
    constant = deviation <= _ROUNDING * moments.scale
    scale = torch.where(constant, torch.zeros_like(deviation), 1.0 / deviation.clamp(min=1e-300))
    return (advantages.double() - mean) * scale


def _goes_on(lengths: Tensor) -> Tensor:
    """float64 [M]: 1 where another acted token of the trajectory follows, 0 at its last."""
    goes_on = torch.ones(int(lengths.sum()), dtype=torch.float64, device=lengths.device)
    goes_on[with_zero(lengths.cumsum(0))[1:][lengths > 0] - 1] = 0.0
    return goes_on


def _decayed_sums(terms: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1} from the end, y being 0 there: O(M) work in O(sqrt M) tensor operations.

    The line is cut in rows of equal length. All rows are summed at once, as if nothing followed them; then
    the sums at their beginnings (the same problem, shorter) are carried into the rows before. A decay of 0
    keeps trajectories apart.
    """
    size = terms.numel()
    if size < _SHORT:
        sums = terms.clone()
        for t in range(size - 2, -1, -1):
            sums[t] += decay[t] * sums[t + 1]
        return sums
    columns = math.isqrt(size)
    rows = -(-size // columns)
    x, d = (_columns(line, rows, columns) for line in (terms, decay))
    for k in range(columns - 2, -1, -1):
        x[k].addcmul_(d[k], x[k + 1])
        d[k].mul_(d[k + 1])
    first = _decayed_sums(x[0], d[0])
    x[:, :-1].addcmul_(d[:, :-1], first[1:])
    return x.t().reshape(-1)[:size]


def _columns(line: Tensor, rows: int, columns: int) -> Tensor:
    """A line [M] cut in rows, transposed: [columns, rows], filled up with zeros, its own memory."""
    filled = torch.nn.functional.pad(line, (0, rows * columns - line.numel()))
    return filled.view(rows, columns).t().contiguous()


def _group_sums(numbers: Tensor, groups: Tensor, size: int | None = None) -> tuple[Tensor, Tensor]:
    """Sum and count of each group: [number of groups] each."""
    size = int(groups.max()) + 1 if size is None else size
    zeros = torch.zeros(size, dtype=numbers.dtype, device=numbers.device)
    return zeros.index_add(0, groups, numbers), zeros.index_add(0, groups, torch.ones_like(numbers))
