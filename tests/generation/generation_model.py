"""A random model with grouped queries, a byte tokenizer, and a fresh full pass to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

VOCABULARY = 256


def tiny_model(*, seed: int = 0, positions: int = 128) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        # Wide and untied: what comes next depends on all of the context, and greedy text does not repeat.
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).eval()


class Bytes:
    """Decodes ids as Latin-1: the part of a tokenizer that stop strings need."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return bytes(ids).decode("latin-1")


def full_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """Log-probability of each id by one pass without a cache."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]


def greedy_ids(model: Any, prompt: Sequence[int], number: int) -> list[int]:
    """Greedy continuation, every token by a fresh full pass."""
    context = list(prompt)
    with torch.no_grad():
        for _ in range(number):
            context.append(int(model(torch.tensor([context]), use_cache=False).logits[0, -1].argmax()))
    return context[len(prompt) :]
