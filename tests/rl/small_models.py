"""A random causal language model of transformers, made on the spot, and rollouts for it."""

from __future__ import annotations

from typing import Any

import torch

from cuda_agent.rl.rollouts import Rollout

VOCABULARY = 61


def small_model(
    *, seed: int = 0, dtype: torch.dtype = torch.float32, vocabulary: int = VOCABULARY, positions: int = 512
) -> Any:
    """Two layers of Qwen2, grouped queries and tied embeddings as in the 0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).to(dtype).eval()
    with torch.no_grad():  # random weights are nearly uniform: make choices differ
        model.get_input_embeddings().weight.mul_(10)
    return model


def small_rollouts(lengths: tuple[int, ...] = (9, 14, 6, 11, 17), *, seed: int = 0) -> list[Rollout]:
    """Trajectories of several turns: prompts of three tokens, answers of two."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number, length in enumerate(lengths):
        ids = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        acted = tuple(position % 5 >= 3 for position in range(length))
        made.append(
            Rollout(
                task=f"task{number % 2}",
                token_ids=tuple(ids),
                acted=acted,
                logprobs=tuple(-4.0 if a else 0.0 for a in acted),
                turns=tuple(position // 5 for position in range(length)),
                outcome=float((-1, 1, 2, 3)[number % 4]),
            )
        )
    return made
