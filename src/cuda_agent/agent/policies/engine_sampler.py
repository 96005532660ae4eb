"""The sampler of a local policy over an engine shared with other policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cuda_agent.agent.policies.sampling import Sampled
from cuda_agent.generation.contract import FinishReason, GenerationEngine, GenerationRequest, SamplingParams


class EngineSampler:
    """What :class:`~cuda_agent.agent.policies.sampling.Sampler` is, for many episodes at once.

    Args:
        engine: stays open; its owner closes it.
        temperature, top_p: of every answer.
        seed: of this policy's answers, whatever else the engine generates; drawn when ``None``.
    """

    def __init__(
        self, engine: GenerationEngine, *, temperature: float, top_p: float, seed: int | None
    ) -> None:
        self._engine, self._temperature, self._top_p = engine, temperature, top_p
        self._seeds = random.Random(seed)

    def sample(
        self, context: Sequence[int], *, max_tokens: int, stop_ids: set[int], deadline: float | None = None
    ) -> Sampled:
        """Continue ``context`` until a stop token, ``max_tokens`` or the deadline (``time.monotonic``).

        Raises:
            UsageError, PolicyError: as the engine's.
        """
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._temperature,
            top_p=self._top_p,
            stop_ids=frozenset(stop_ids),
            seed=self._seeds.getrandbits(62),
        )
        (made,) = self._engine.generate([GenerationRequest(tuple(context), params, deadline)])
        return Sampled(made.ids, made.logprobs, made.finish is FinishReason.STOP_ID)

    def reset(self) -> None:
        """Nothing: the engine keeps the cache."""
