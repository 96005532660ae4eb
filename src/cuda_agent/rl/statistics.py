"""Metrics as sums that add up over micro-batches and ranks, and their means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Additive metrics; no transfer to the host until :meth:`means`.

    Attributes:
        count: acted tokens that the sums run over: float64 [].
        totals: sums over tokens, by name: float64 [] each.
        losses: sums whose denominator is in them already, and plain counts, by name: float64 [] each.
        largest, smallest: extremes by name: float64 [] each.
    """

    count: Tensor
    totals: Mapping[str, Tensor]
    losses: Mapping[str, Tensor]
    largest: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    smallest: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """Each total over the count, each loss and extreme as it is. NaN where nothing was counted."""
        means = {name: total / self.count for name, total in self.totals.items()}
        found = {**self.losses, **means, **self.largest, **self.smallest, "tokens": self.count}
        return {name: float(value) for name, value in found.items()}

    def nothing(self) -> Sums:
        """The same names with no token counted: adds nothing to others."""
        return Sums(
            torch.zeros_like(self.count),
            {name: torch.zeros_like(total) for name, total in self.totals.items()},
            {name: torch.zeros_like(loss) for name, loss in self.losses.items()},
            {name: torch.full_like(extreme, -torch.inf) for name, extreme in self.largest.items()},
            {name: torch.full_like(extreme, torch.inf) for name, extreme in self.smallest.items()},
        )

    def across_ranks(self) -> Sums:
        """Over all ranks, where torch.distributed runs; else unchanged."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        operations = torch.distributed.ReduceOp
        return Sums(
            _reduced({"": self.count}, operations.SUM)[""],
            _reduced(self.totals, operations.SUM),
            _reduced(self.losses, operations.SUM),
            _reduced(self.largest, operations.MAX),
            _reduced(self.smallest, operations.MIN),
        )


def add(parts: Sequence[Sums]) -> Sums:
    """The sums of several micro-batches of one minibatch together.

    Raises:
        ValueError: no parts.
    """
    if not parts:
        raise ValueError("nothing to add")
    first = parts[0]
    return Sums(
        torch.stack([part.count for part in parts]).sum(),
        {name: torch.stack([part.totals[name] for part in parts]).sum() for name in first.totals},
        {name: torch.stack([part.losses[name] for part in parts]).sum() for name in first.losses},
        {name: torch.stack([part.largest[name] for part in parts]).amax() for name in first.largest},
        {name: torch.stack([part.smallest[name] for part in parts]).amin() for name in first.smallest},
    )


def means_by_turn(numbers: Tensor, turns: Tensor) -> Tensor:
    """Mean over acted tokens of each turn: float64 [turns], NaN for a turn without tokens.

    Args:
        numbers: [M], such as values, ratios or magnitudes of advantages.
        turns: int64 [M].
    """
    size = int(turns.max()) + 1 if turns.numel() else 0
    zeros = torch.zeros(size, dtype=torch.float64, device=numbers.device)
    x = numbers.detach().double()
    return zeros.index_add(0, turns, x) / zeros.index_add(0, turns, torch.ones_like(x))


def _reduced(numbers: Mapping[str, Tensor], operation: torch.distributed.ReduceOp) -> dict[str, Tensor]:
    if not numbers:
        return {}
    together = torch.stack(list(numbers.values()))
    torch.distributed.all_reduce(together, op=operation)
    return dict(zip(numbers, together.unbind(), strict=True))
