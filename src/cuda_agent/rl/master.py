"""AdamW with float32 masters of weights that the model keeps in bfloat16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class MasterAdamW:
    """AdamW whose weights and moments are float32; the model's own weights are rounded copies.

    Steps of 3e-6 are smaller than bfloat16's spacing: without masters most would be lost. Weights that are
    float32 already are their own masters.

    Args:
        weights: to be trained.
        lr: learning rate.
        betas, weight_decay: of AdamW; the paper states none.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
    ) -> None:
        self.weights = [weight for weight in weights if weight.requires_grad]
        narrow = (torch.bfloat16, torch.float16)
        self.masters = [nn.Parameter(w.detach().float()) if w.dtype in narrow else w for w in self.weights]
        self._adam = torch.optim.AdamW(
            self.masters, lr=lr, betas=betas, weight_decay=weight_decay, fused=_fused(self.masters)
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, *, max_norm: float) -> float:
        """One update from the gradients, clipped to a global norm; gradients are then dropped.

        A gradient that is not finite changes nothing.

        Returns:
            The norm before clipping; may be infinite or NaN.
        """
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        _sum_over_ranks(self.masters)
        norm = float(nn.utils.clip_grad_norm_(self.masters, max_norm))
        if norm - norm == 0.0:
            self._adam.step()
            for weight, master in zip(self.weights, self.masters, strict=True):
                if master is not weight:
                    weight.copy_(master)
        for master in self.masters:
            master.grad = None
        return norm

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take_weights(self) -> None:
        """Masters become what the model's weights are now, after these were loaded."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                master.copy_(weight)

    def set_lr(self, lr: float) -> None:
        """Learning rate of the next steps."""
        for group in self._adam.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Moments, and masters where they are not the model's own weights."""
        masters = [
            None if master is weight else master.detach()
            for weight, master in zip(self.weights, self.masters, strict=True)
        ]
        return {"adam": self._adam.state_dict(), "masters": masters}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._adam.load_state_dict(state["adam"])
        for weight, master, saved in zip(self.weights, self.masters, state["masters"], strict=True):
            if saved is not None:
                master.copy_(saved)
                weight.copy_(saved)


def _sum_over_ranks(weights: list[nn.Parameter]) -> None:
    """Losses have the whole minibatch's denominator in them: gradients are summed, not averaged."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for weight in weights:
            if weight.grad is not None:
                torch.distributed.all_reduce(weight.grad)


def _fused(weights: list[nn.Parameter]) -> bool:
    return bool(weights) and all(weight.is_cuda for weight in weights)
