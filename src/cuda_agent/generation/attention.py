"""Attention over slots: grouped queries without repeating keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

NAME = "cuda_agent_slots"


@contextmanager
def slot_attention_of(model: Any) -> Iterator[None]:
    """Within the block the model attends by :func:`slot_attention`; afterwards as before.

    A model in training has attention of its own: it comes back whatever happens.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, slot_attention)
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def slot_attention(
    module: nn.Module,  # noqa: ARG001  (the order is transformers')
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Masked attention.

    Args:
        query: [B, heads, T, size].
        key, value: [B, groups, L, size].
        attention_mask: bool [B, 1, T, L], true where a query sees a key.

    Returns:
        [B, T, heads, size].
    """
    scale = options.get("scaling")
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    if length == 1:
        # The queries of a group as rows of one query: its keys are read once, not once for each head.
        together = query.view(batch, groups, heads // groups, size)
        mask = attention_mask.expand(batch, 1, heads // groups, key.shape[2])
        out = F.scaled_dot_product_attention(together, key, value, mask, scale=scale)
        return out.reshape(batch, 1, heads, size), None
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scale, enable_gqa=groups != heads
    )
    return out.transpose(1, 2), None
