"""AdamW with float32 masters of weights that the model keeps in bfloat16."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent.rl.ranks import sum_over_ranks
from cuda_agent.rl.sharding import global_norm, is_sharded, local_of, part_like, whole_like

_NARROW = (torch.bfloat16, torch.float16)
_MOMENTS = ("exp_avg", "exp_avg_sq")


class MasterAdamW:
    """AdamW whose weights and moments are float32; the model's own weights are rounded copies.

    Steps of 3e-6 are smaller than bfloat16's spacing: without masters most would be lost. Weights that are
    float32 already are their own masters. Of a weight that is sharded over ranks (FSDP2) each rank has the
    master and the moments of its part; of another all ranks have the same, and gradients are summed here.

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
        self.masters = [_master(weight) for weight in self.weights]
        self._adam = torch.optim.AdamW(
            self.masters, lr=lr, betas=betas, weight_decay=weight_decay, fused=_fused(self.masters)
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, *, max_norm: float) -> float:
        """One update from the gradients, clipped to a norm over all ranks; gradients are then dropped.

        A gradient that is not finite changes nothing, on any rank. All ranks must call.

        Returns:
            The norm before clipping; may be infinite or NaN.
        """
        whole, parts = self._take_gradients()
        norm = global_norm(whole, parts)
        if norm - norm == 0.0:
            for gradient in (*whole, *parts):
                gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
            self._adam.step()
            self._round()
        for master in self.masters:
            master.grad = None
        return norm

    def _take_gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients move to the masters: of whole weights, summed over ranks; of parts."""
        whole, parts = [], []
        for weight, master in zip(self.weights, self.masters, strict=True):
            gradient, weight.grad = weight.grad, None
            if _shares_memory(weight):
                master.data = local_of(weight.detach())  # FSDP may have moved it
            if gradient is None:
                continue
            gradient = local_of(gradient).to(master.dtype)
            master.grad = gradient
            if is_sharded(weight):
                parts.append(gradient)
            else:
                whole.append(sum_over_ranks(gradient))
        return whole, parts

    def _round(self) -> None:
        for weight, master in self._copies():
            local_of(weight.detach()).copy_(master)

    def _copies(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Weights that have a master beside them."""
        pairs = zip(self.weights, self.masters, strict=True)
        return ((weight, master) for weight, master in pairs if weight.dtype in _NARROW)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take_weights(self) -> None:
        """Masters become what the model's weights are now, after these were loaded."""
        for weight, master in self._copies():
            master.copy_(local_of(weight.detach()))

    def set_lr(self, lr: float) -> None:
        """Learning rate of the next steps."""
        for group in self._adam.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Moments, and masters where they are not the model's own weights.

        All ranks must call. Tensors are whole, so the state can be read on any number of ranks; of sharded
        weights rank 0 alone has them (:func:`cuda_agent.rl.sharding.whole_of`).
        """
        adam = self._adam.state_dict()
        adam["state"] = {
            index: {
                name: whole_like(found, self.weights[index]) if name in _MOMENTS else found
                for name, found in moments.items()
            }
            for index, moments in adam["state"].items()
        }
        masters = [
            whole_like(master.detach(), weight) if weight.dtype in _NARROW else None
            for weight, master in zip(self.weights, self.masters, strict=True)
        ]
        return {"adam": adam, "masters": masters}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; nothing is sent."""
        moments = {
            index: {
                name: part_like(found, self.weights[index]) if name in _MOMENTS else found
                for name, found in of_weight.items()
            }
            for index, of_weight in state["adam"]["state"].items()
        }
        self._adam.load_state_dict({**state["adam"], "state": moments})
        for weight, master, saved in zip(self.weights, self.masters, state["masters"], strict=True):
            if saved is not None:
                master.copy_(part_like(saved, weight))
                local_of(weight.detach()).copy_(master)


def _master(weight: nn.Parameter) -> nn.Parameter:
    if weight.dtype in _NARROW:
        return nn.Parameter(local_of(weight.detach()).float())
    return nn.Parameter(local_of(weight.detach())) if is_sharded(weight) else weight


def _shares_memory(weight: nn.Parameter) -> bool:
    """Whether the master is another name for this rank's part of the weight."""
    return is_sharded(weight) and weight.dtype not in _NARROW


def _fused(weights: list[nn.Parameter]) -> bool:
    return bool(weights) and all(weight.is_cuda for weight in weights)
