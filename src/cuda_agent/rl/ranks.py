"""What the ranks of torch.distributed know of each other; one process alone is rank 0 of 1."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_agent.errors import UsageError
from cuda_agent.rl.rollouts import PackedRollouts


def is_distributed() -> bool:
    """Whether torch.distributed runs in this process."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def num_ranks() -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if is_distributed() else 1


def this_rank() -> int:
    """This process's number, from 0."""
    return torch.distributed.get_rank() if is_distributed() else 0


def sum_over_ranks(numbers: Tensor) -> Tensor:
    """Sum in place over all ranks, each of which must call; bit-equal on all of them."""
    if is_distributed():
        torch.distributed.all_reduce(numbers)
    return numbers


def check_same_batch(batch: PackedRollouts) -> None:
    """Hold a batch against that of the other ranks, each of which must call.

    Covers ids, masks, lengths, outcomes and the sampler's log-probabilities, by checksum.

    Raises:
        UsageError: on every rank, where they differ.
    """
    if not is_distributed():
        return
    columns = (batch.token_ids, batch.acted, batch.lengths, batch.outcomes, batch.sampler_logprobs)
    sums = [zlib.crc32(column.cpu().numpy().tobytes()) for column in columns]
    own = torch.tensor(sums, device=batch.lengths.device)
    least, most = own.clone(), own.clone()
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    if not torch.equal(least, most):
        raise UsageError(
            "ranks were given different rollouts", "Give every rank the whole batch, in one order."
        )


def divide(
    lengths: Sequence[int], trajectories: Sequence[int], *, max_tokens: int, num_ranks: int
) -> list[list[list[int]]]:
    """Trajectories of a minibatch in forward passes, for each rank as many.

    The longest goes first to the rank that has the fewest tokens yet. Every rank computes the whole division,
    so they agree on the number of passes without a word; what is missing at the end is an empty pass.

    Args:
        lengths: tokens of every trajectory of the batch.
        trajectories: those of the minibatch.
        max_tokens: most in one pass, unless one trajectory alone has more.

    Returns:
        For each rank its passes, for each pass its trajectories. On one rank they keep their order.
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    if num_ranks == 1:
        shares = [list(trajectories)]
    else:
        loads = [0] * num_ranks
        for one in sorted(trajectories, key=lambda one: -lengths[one]):
            rank = loads.index(min(loads))
            shares[rank].append(one)
            loads[rank] += lengths[one]
    passes = [_passes(lengths, share, max_tokens) for share in shares]
    most = max(len(own) for own in passes)
    return [own + [[] for _ in range(most - len(own))] for own in passes]


def _passes(lengths: Sequence[int], trajectories: Sequence[int], max_tokens: int) -> list[list[int]]:
    passes: list[list[int]] = []
    size = 0
    for one in trajectories:
        if not passes or size + lengths[one] > max_tokens:
            passes.append([])
            size = 0
        passes[-1].append(one)
        size += lengths[one]
    return passes
