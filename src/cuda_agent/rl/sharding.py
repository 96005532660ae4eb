"""Weights spread over ranks with PyTorch's FSDP2, and put together again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cuda_agent.errors import UsageError
from cuda_agent.rl.ranks import is_distributed, this_rank

_NARROW = (torch.bfloat16, torch.float16)


def shard(network: nn.Module, decoder: Any) -> None:
    """Spread the weights of a network over all ranks: each decoder layer by itself, the rest together.

    What runs is gathered before it runs, forward and backward, and freed after it, so every rank must make
    the same passes. Gradients are summed over ranks, not averaged: losses have the whole minibatch's
    denominator in them. Those of half precision are summed in float32.

    Args:
        network: whose call is one pass; changed in place.
        decoder: the model of transformers without its head, somewhere in ``network``.

    Raises:
        UsageError: torch.distributed does not run, or the decoder has no list of layers.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not is_distributed():
        raise UsageError("sharding needs several processes", "Start torch.distributed first (torchrun).")
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UsageError("the model has no list of layers to shard", "Train it without sharding.")
    some = next(decoder.parameters())
    mesh = init_device_mesh(some.device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if some.dtype in _NARROW else None)
    for module in (*layers, network):
        # The outermost too: after a pass without gradient it would go on with weights from before the update.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        module.set_gradient_divide_factor(1.0)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of it only."""
    return isinstance(tensor, DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory; a whole tensor is itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_of(tensor: Tensor) -> Tensor:
    """A tensor gathered from all ranks, each of which must call; a whole tensor is itself.

    Rank 0 has it in main memory, so that a GPU need not hold the whole network; the others have its shape
    alone (device ``meta``).
    """
    if not isinstance(tensor, DTensor):
        return tensor
    whole = tensor.full_tensor()
    return whole.to("meta" if this_rank() else "cpu")


def whole_like(part: Tensor, model: Tensor) -> Tensor:
    """:func:`whole_of` for a rank's part of a tensor that lies over ranks as ``model`` does."""
    if not isinstance(model, DTensor):
        return part
    return whole_of(
        DTensor.from_local(
            part,
            model.device_mesh,
            model.placements,
            run_check=False,
            shape=model.shape,
            stride=model.stride(),
        )
    )


def part_like(whole: Tensor, model: Tensor) -> Tensor:
    """Inverse of :func:`whole_like`: this rank's part, of its own memory; nothing is sent."""
    return local_of(_spread_like(whole, model)).clone() if isinstance(model, DTensor) else whole


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state with every tensor gathered, tied ones once; all ranks must call."""
    found: dict[str, Tensor] = {}
    gathered: dict[tuple[int, torch.Size], Tensor] = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor
            continue
        place = (tensor.to_local().untyped_storage().data_ptr(), tensor.shape)
        if place not in gathered:
            gathered[place] = whole_of(tensor)
        found[name] = gathered[place]
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def load_whole(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state of whole tensors into a module that may be sharded; nothing is sent.

    Raises:
        RuntimeError: names or shapes differ.
    """
    own = module.state_dict()
    module.load_state_dict(
        {name: _spread_like(whole, own[name]) if name in own else whole for name, whole in state.items()}
    )


def global_norm(whole: Sequence[Tensor], parts: Sequence[Tensor]) -> float:
    """Norm over tensors that every rank has alike, and over parts of which each rank has its own.

    All ranks must call where there are parts anywhere. In float64.
    """
    squares = [_square(tensor) for tensor in whole]
    if parts:
        own = torch.stack([_square(tensor) for tensor in parts]).sum()
        torch.distributed.all_reduce(own)
        squares.append(own)
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0


def _square(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()


def _spread_like(whole: Tensor, model: Tensor) -> Tensor:
    if not isinstance(model, DTensor):
        return whole
    return distribute_tensor(whole.to(model.device), model.device_mesh, model.placements, src_data_rank=None)
