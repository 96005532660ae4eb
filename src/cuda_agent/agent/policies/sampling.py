"""Sampling from a causal language model, one sequence, its key-value cache kept across turns."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_PREFILL_CHUNK = 2048
"""Prompt tokens in one forward pass: bounds the memory of a long prompt."""


@dataclass(frozen=True)
class Sampled:
    """What was sampled.

    Attributes:
        ids: tokens, the stop token included.
        logprobs: log-probability of each under the distribution it was drawn from.
        stopped: a stop token ended it, not a limit.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


def sampling_logprobs(logits: torch.Tensor, *, temperature: float, top_p: float) -> torch.Tensor:
    """Log-probabilities of the distribution that is sampled from.

    Args:
        logits: ``[vocabulary]``.
        temperature: divides the logits; 0 (greedy) leaves them as they are.
        top_p: only the smallest set of tokens with at least this probability in all is kept.

    Returns:
        ``[vocabulary]``, float32; ``-inf`` outside the kept set.
    """
    scaled = logits.float() / temperature if temperature > 0 else logits.float()
    logprobs = torch.log_softmax(scaled, dim=-1)
    if top_p >= 1.0:
        return logprobs
    ordered, order = logprobs.sort(descending=True)
    before = ordered.exp().cumsum(0) - ordered.exp()
    outside = torch.empty_like(before, dtype=torch.bool).scatter_(0, order, before >= top_p)
    return torch.log_softmax(logprobs.masked_fill(outside, float("-inf")), dim=-1)


class Sampler:
    """Feeds a model only what its cache lacks.

    Args:
        model: causal language model of transformers, in eval mode.
        temperature, top_p: see :func:`sampling_logprobs`; temperature 0 takes the likeliest token.
        seed: of the generator; drawn when ``None``.
    """

    def __init__(self, model: Any, *, temperature: float, top_p: float, seed: int | None) -> None:
        self._model = model
        self._temperature, self._top_p = temperature, top_p
        self._generator = torch.Generator(device=model.device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        takes = inspect.signature(model.forward).parameters
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._cached: list[int] = []
        self._cache: Any = None
        self.num_fed = 0
        """Tokens fed to the model so far; a test of the cache."""

    def sample(
        self, context: Sequence[int], *, max_tokens: int, stop_ids: set[int], deadline: float | None = None
    ) -> Sampled:
        """Continue ``context`` until a stop token, ``max_tokens`` or the deadline (``time.monotonic``)."""
        cached, cache = self._cached, self._cache
        self.reset()  # an interrupted pass leaves the cache in an unknown state
        if list(context[: len(cached)]) != cached or len(cached) >= len(context):
            cached, cache = [], None
        ids: list[int] = []
        logprobs: list[float] = []
        with torch.inference_mode():
            logits, cache = self._feed(context[len(cached) :], cache)
            while True:
                distribution = sampling_logprobs(logits, temperature=self._temperature, top_p=self._top_p)
                ids.append(self._draw(distribution))
                logprobs.append(float(distribution[ids[-1]]))
                late = deadline is not None and time.monotonic() >= deadline
                if ids[-1] in stop_ids or len(ids) >= max_tokens or late:
                    break
                logits, cache = self._feed(ids[-1:], cache)
        # The last token was drawn but not fed: it is fed with the next turn's new tokens.
        self._cached, self._cache = [*context, *ids[:-1]], cache
        return Sampled(tuple(ids), tuple(logprobs), ids[-1] in stop_ids)

    def reset(self) -> None:
        """Forget the cache."""
        self._cached, self._cache = [], None

    def _feed(self, ids: Sequence[int], cache: Any) -> tuple[torch.Tensor, Any]:
        for start in range(0, len(ids), _PREFILL_CHUNK):
            chunk = torch.tensor([ids[start : start + _PREFILL_CHUNK]], device=self._model.device)
            output = self._model(input_ids=chunk, past_key_values=cache, use_cache=True, **self._keep)
            cache = output.past_key_values
            self.num_fed += chunk.shape[1]
        return output.logits[0, -1], cache

    def _draw(self, distribution: torch.Tensor) -> int:
        if self._temperature == 0:
            return int(distribution.argmax())
        return int(torch.multinomial(distribution.exp(), 1, generator=self._generator))
