"""Attention over trajectories end to end, for any model of transformers: no padding, no mask in memory.

Registered under :data:`NAME`. Boundaries come as the keyword arguments that transformers passes to its
flash attention (``cu_seq_lens_q``, ``max_length_q``), so models need no change. On CUDA in half precision
torch's ``varlen_attn`` does it in one kernel; elsewhere each trajectory has its own causal
``scaled_dot_product_attention``.
"""

from __future__ import annotations

import inspect
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

NAME = "cuda_agent_packed"


def register() -> str:
    """Make :data:`NAME` known to transformers; may run twice.

    Returns:
        The name, for ``model.set_attn_implementation``.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    return NAME


def packed_attention(
    module: torch.nn.Module,  # noqa: ARG001  (the order is transformers')
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,  # noqa: ARG001
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each trajectory.

    Args:
        query: [1, heads, N, size]; ``key``, ``value`` with as many heads or fewer (grouped queries).
        options: ``scaling``, and ``cu_seq_lens_q`` int32 [B + 1] with ``max_length_q``; without them one
            sequence, whose queries are the last of the keys.

    Returns:
        [1, N, heads, size].
    """
    scale = options.get("scaling")
    bounds = options.get("cu_seq_lens_q")
    if bounds is None:
        return _one(query, key, value, scale).transpose(1, 2), None
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and _varlen() is not None:
        return _fused(query, key, value, bounds, int(options["max_length_q"]), scale=scale), None
    edges = bounds.tolist()
    parts = [_one(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale) for a, b in pairwise(edges)]
    return torch.cat(parts, 2).transpose(1, 2), None


def _one(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    num_queries, num_keys = query.shape[2], key.shape[2]
    mask = None
    if 1 < num_queries < num_keys:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        mask = mask.tril(num_keys - num_queries)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=num_queries == num_keys, scale=scale, enable_gqa=grouped
    )


def _fused(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, *, scale: float | None
) -> Tensor:
    attend, takes = _varlen() or (None, frozenset())
    assert attend is not None  # the caller asked
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and "enable_gqa" not in takes:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]
    extra: dict[str, Any] = {"is_causal": True} if "is_causal" in takes else {"window_size": (-1, 0)}
    if "enable_gqa" in takes:
        extra["enable_gqa"] = groups > 1
    if "scale" in takes:
        extra["scale"] = scale
    elif scale is not None:
        rows[0] = rows[0] * (scale * rows[0].shape[-1] ** 0.5)
    out: Tensor = attend(*rows, bounds, bounds, longest, longest, **extra)
    return out[None]


@cache
def _varlen() -> tuple[Any, frozenset[str]] | None:
    """``varlen_attn`` and the names of its parameters, which differ between versions of torch."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)
