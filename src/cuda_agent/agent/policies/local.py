"""A model of this machine, over transformers, on CPU or GPU; keeps tokens, log-probabilities and mask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.options import PolicyOptions
from cuda_agent.agent.policies.tokenspace import TokenSpace
from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role, ToolSpec
from cuda_agent.agent.textformat import NO_ACTION, parse_answer
from cuda_agent.errors import PolicyError, UsageError
from cuda_agent.generation.contract import GenerationEngine
from cuda_agent.trajectory import TokenRecord, Usage

_log = logging.getLogger(__name__)


class LocalPolicy:
    """Samples from a causal language model. The model's own generation settings are not used.

    Each turn's record holds the ids appended before the answer (not acted), the ids sampled, and the
    log-probability of each under the distribution it was drawn from (temperature and top-p included).
    The concatenation of all records is the context, exactly.

    Args:
        path: folder with weights and tokenizer, as transformers saves them.

    Raises:
        UsageError: no such folder, or transformers is missing.
        PolicyError: the model cannot be loaded.
    """

    def __init__(self, path: Path, *, options: PolicyOptions) -> None:
        self._path = path
        self._options = options
        model, tokenizer = _load(path, options)
        self._setup(model, tokenizer)

    @classmethod
    def from_model(
        cls, model: Any, tokenizer: Any, *, options: PolicyOptions, name: str = "model"
    ) -> LocalPolicy:
        """A policy around a model that is loaded already, such as one in training."""
        policy = cls.__new__(cls)
        policy._path, policy._options = Path(name), options
        policy._setup(model, tokenizer)
        return policy

    @classmethod
    def from_engine(
        cls,
        engine: GenerationEngine,
        model: Any,
        tokenizer: Any,
        *,
        options: PolicyOptions,
        name: str = "model",
    ) -> LocalPolicy:
        """A policy that samples through an engine, beside others that do; ``model`` is the engine's own."""
        policy = cls.__new__(cls)
        policy._path, policy._options = Path(name), options
        policy._setup(model, tokenizer, engine)
        return policy

    def _setup(self, model: Any, tokenizer: Any, engine: GenerationEngine | None = None) -> None:
        options = self._options
        self._tokenizer = tokenizer
        self._space = TokenSpace(tokenizer, options.tool_format)
        self._stop_ids = _stop_ids(model, tokenizer)
        if (end := self._space.end_of_answer()) is not None:
            self._stop_ids.add(end)
        self._sampler = _sampler(model, options, engine)
        self._model_limit = int(getattr(model.config, "max_position_embeddings", None) or 2**31)
        self._limit = self._model_limit
        self._deadline: float | None = None
        self.policy_version = options.policy_version or self._path.name
        """Version written beside the tokens; a trainer moves it on with the weights."""

    @property
    def name(self) -> str:
        """``local:PATH``."""
        return f"local:{self._path}"

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        """Begin an episode; a resumed one goes on from the recorded ids."""
        self._limit = min(self._model_limit, context.max_context or self._model_limit)
        self._deadline = context.deadline
        if any(message.role is Role.ASSISTANT and message.tokens is None for message in history):
            _log.warning("the history has answers without token ids: it is rendered and tokenised anew")

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Sample the next answer.

        Raises:
            PolicyError: the device has not enough memory.
        """
        old, new = self._space.context(messages, tools, stop_ids=self._stop_ids)
        used = len(old) + len(new)
        if used >= self._limit:
            return Action("", context_full=True, context_tokens=used)
        sampled = self._sample([*old, *new], min(self._options.max_tokens, self._limit - used))
        words = sampled.ids[:-1] if sampled.stopped else sampled.ids
        text = self._tokenizer.decode(list(words), skip_special_tokens=False)
        num_answers = sum(message.role is Role.ASSISTANT for message in messages)
        total = used + len(sampled.ids)
        full = not sampled.stopped and total >= self._limit
        parsed = parse_answer(text, tools, id_prefix=f"call_{num_answers}")
        malformed = parsed.malformed
        if not sampled.stopped and not full and not parsed.calls and not malformed:
            malformed = (f"The answer was cut off after {len(words)} tokens before a tool call. Write less.",)
        elif not (parsed.calls or malformed or parsed.finished or self._space.is_native(tools)):
            malformed = (NO_ACTION,)
        return Action(
            parsed.text,
            parsed.calls,
            malformed,
            tokens=TokenRecord(tuple(new), sampled.ids, sampled.logprobs, self.policy_version),
            usage=Usage(used, len(sampled.ids)),
            context_tokens=total,
            context_full=full,
        )

    def weights_changed(self, policy_version: str) -> None:
        """Say that the model's weights are new ones: the cache is of no use any more."""
        self.policy_version = policy_version
        self._sampler.reset()

    def close(self) -> None:
        """Free the cache; may run twice."""
        self._sampler.reset()

    def _sample(self, context: list[int], max_tokens: int) -> Any:
        import torch

        try:
            return self._sampler.sample(
                context, max_tokens=max_tokens, stop_ids=self._stop_ids, deadline=self._deadline
            )
        except torch.OutOfMemoryError:
            raise PolicyError(
                f"{self.name}: out of device memory with {len(context)} tokens of context",
                "Lower --max-context, or use a smaller model.",
            ) from None


def _load(path: Path, options: PolicyOptions) -> tuple[Any, Any]:
    if not path.is_dir():
        raise UsageError(f"no model at {path}", "Name a folder with weights and tokenizer.")
    try:
        import torch
        import transformers
    except ImportError:
        raise UsageError(
            "policy local needs torch and transformers",
            "Install them: pip install 'cuda-agent[torch,local]'.",
        ) from None
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=options.dtype, local_files_only=True
        ).to(device)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
        raise PolicyError(
            f"cannot load the model at {path}: {str(error)[:300]}",
            "It must be a causal language model saved by transformers, with its tokenizer.",
        ) from None
    return model.eval(), tokenizer


def _sampler(model: Any, options: PolicyOptions, engine: GenerationEngine | None) -> Any:
    from cuda_agent.agent.policies.engine_sampler import EngineSampler
    from cuda_agent.agent.policies.sampling import Sampler

    temperature = 1.0 if options.temperature is None else options.temperature
    top_p = 1.0 if options.top_p is None else options.top_p
    if engine is not None:
        return EngineSampler(engine, temperature=temperature, top_p=top_p, seed=options.seed)
    return Sampler(model, temperature=temperature, top_p=top_p, seed=options.seed)


def _stop_ids(model: Any, tokenizer: Any) -> set[int]:
    ids = {tokenizer.eos_token_id}
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids |= set(configured) if isinstance(configured, list) else {configured}
    return {int(i) for i in ids if i is not None}
