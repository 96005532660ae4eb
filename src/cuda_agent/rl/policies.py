"""What samples the episodes of a batch: one engine over the actor in training, and a policy for each episode.

The engine calls the trainer's own model: weights are used where they lie, adapters stay unmerged. It is made
for a batch and its memory is free again before the update, which may need all of it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import torch

from cuda_agent.agent.policies.local import LocalPolicy
from cuda_agent.agent.policies.options import PolicyOptions, ToolFormat
from cuda_agent.agent.policy import Policy
from cuda_agent.errors import UsageError
from cuda_agent.generation.slots import SlotEngine
from cuda_agent.rl.training_config import EngineKind, TrainConfig


class RolloutPolicies:
    """Makes policies of the weights as they are now; as a context manager, frees the engine at its end.

    Weights must not change within the block. The engine is made with the first policy, so that a batch whose
    episodes are all on disk takes no memory.

    Args:
        model: the actor in eval mode, its adapter active.
        context: longest context of an episode, tokens; each slot holds as many.
        version: of the weights, written beside the tokens.
    """

    def __init__(
        self, model: Any, tokenizer: Any, config: TrainConfig, *, context: int, version: str
    ) -> None:
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._context, self._version = context, version
        self._lock = threading.Lock()
        self._engine: SlotEngine | None = None

    def __call__(self, seed: int) -> Policy:
        """A policy for one episode; call it while the device's lease is held.

        Raises:
            UsageError: the device has not enough memory for the slots.
        """
        options = PolicyOptions(
            temperature=1.0,
            top_p=1.0,
            max_tokens=self._config.rollout.max_answer,
            tool_format=ToolFormat.AUTO,
            seed=seed,
            policy_version=self._version,
        )
        if self._config.generation.engine is EngineKind.PLAIN:
            return LocalPolicy.from_model(self._model, self._tokenizer, options=options, name="training")
        with self._lock:
            engine = self._engine = self._engine or self._made()
        return LocalPolicy.from_engine(engine, self._model, self._tokenizer, options=options, name="training")

    def facts(self) -> dict[str, float]:
        """What the engine did: tokens sampled, fed and reused, its seconds, tokens sampled a second."""
        if self._engine is None:
            return {}
        use = self._engine.use
        return {
            "sampled_tokens": use.num_sampled,
            "prompt_tokens_fed": use.num_fed,
            "prompt_tokens_reused": use.num_reused,
            "sampling_s": use.seconds,
            "tokens_per_s": use.num_sampled / max(use.seconds, 1e-9),
        }

    def close(self) -> None:
        """Free the slots' memory; may run twice."""
        if self._engine is None:
            return
        self._engine.close()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()  # graphs had memory of their own

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _made(self) -> SlotEngine:
        table = self._config.generation
        slots = table.slots or self._config.rollout.parallel
        on_cpu = self._model.device.type == "cpu"
        try:
            return SlotEngine(
                self._model,
                self._tokenizer,
                num_slots=slots,
                length=self._context,
                graphs=table.cuda_graphs,
                exact=on_cpu and table.exact_on_cpu,
                policy_version=self._version,
            )
        except torch.OutOfMemoryError:
            raise UsageError(
                f"no device memory for {slots} slots of {self._context} tokens",
                "Lower generation.slots, or the stage's context.",
            ) from None
