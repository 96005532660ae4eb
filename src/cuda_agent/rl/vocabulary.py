"""Log-probabilities and entropies from hidden states, the vocabulary's logits never whole in memory.

Logits are made for some rows at a time, used and thrown away; the backward pass makes them again. With
152,000 ids and 1,024 rows a block takes 0.6 GB in float32, where the logits of 131,072 tokens would take 80.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 1024
"""Rows of logits made at a time."""


def head_logprobs(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, bias: Tensor | None = None, rows: int = ROWS
) -> tuple[Tensor, Tensor]:
    """Log-probability of each id and entropy of its distribution, at temperature 1.

    Gradients reach ``hidden``, ``weight`` and ``bias``, from both outputs.

    Args:
        hidden: [M, H], what the head reads.
        weight: [V, H], the head.
        ids: int64 [M].
        bias: [V].
        rows: logits made at a time.

    Returns:
        [M] each, float32 (float64 where ``hidden`` is); entropy in nats.
    """
    result: tuple[Tensor, Tensor] = _Head.apply(hidden, weight, bias, ids, rows)
    return result


class _Head(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(  # noqa: PLR0917  (torch calls it by position)
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, ids)
        ctx.rows = rows
        wide = torch.float64 if hidden.dtype is torch.float64 else torch.float32
        logprobs = torch.empty(len(ids), dtype=wide, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        for start in range(0, len(ids), rows):
            some = slice(start, start + rows)
            logp = _log_softmax(hidden[some], weight, bias)
            logprobs[some] = logp.gather(1, ids[some, None])[:, 0]
            entropies[some] = -(logp.exp() * logp).sum(1)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.empty_like(hidden) if needs_hidden else None
        to_weight = _zeros(weight) if needs_weight else None
        to_bias = _zeros(bias) if needs_bias and bias is not None else None
        for start in range(0, len(ids), ctx.rows):
            some = slice(start, start + ctx.rows)
            grad = _to_logits(
                _log_softmax(hidden[some], weight, bias), ids[some], grad_logprobs[some], grad_entropies[some]
            )
            narrow = grad.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden[some] = narrow @ weight
            if to_weight is not None:
                to_weight += narrow.t() @ hidden[some]
            if to_bias is not None:
                to_bias += grad.sum(0)
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
        )


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return (logits if logits.dtype is torch.float64 else logits.float()).log_softmax(-1)


def _to_logits(logp: Tensor, ids: Tensor, grad_logprobs: Tensor, grad_entropies: Tensor) -> Tensor:
    """d/dz of log p(id) is 1[id] - p; of the entropy -p (log p + entropy)."""
    p = logp.exp()
    entropies = -(p * logp).sum(1, keepdim=True)
    grad = -p * (grad_logprobs[:, None] + grad_entropies[:, None] * (logp + entropies))
    return grad.scatter_add_(1, ids[:, None], grad_logprobs[:, None])


def _zeros(like: Tensor) -> Tensor:
    """Sums over blocks are kept in float32 at least."""
    wide = like.dtype if like.dtype is torch.float64 else torch.float32
    return torch.zeros(like.shape, dtype=wide, device=like.device)
