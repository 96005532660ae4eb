"""The engine of a server: prompts go as ids to ``/v1/completions``, ids and log-probabilities come back.

vLLM answers so with ``return_token_ids`` (ids beside the text) or ``return_tokens_as_token_ids`` (tokens
spelt ``token_id:N``); any server that does either will do. Text is never tokenised again: a server that
returns no ids is refused. Servers report log-probabilities of the unscaled model, so that is what may
be sampled from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cuda_agent.errors import PolicyError, UsageError
from cuda_agent.generation.contract import Completion, FinishReason, GenerationRequest

_SPELT = "token_id:"


class ServerEngine:
    """Implements :class:`~cuda_agent.generation.contract.GenerationEngine` over HTTP.

    Args:
        base_url: such as ``http://127.0.0.1:8000/v1``.
        model: as the server names it.
        api_key: sent as bearer token; never logged.
        parallel: requests under way at once; the server batches them.
        timeout_s: longest wait for one answer.
        max_retries: after 429, 5xx and lost connections.
        policy_version: of the weights that the server holds.

    Raises:
        UsageError: the openai package is missing.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        parallel: int = 64,
        timeout_s: float = 600.0,
        max_retries: int = 4,
        policy_version: str = "",
    ) -> None:
        try:
            import openai
        except ImportError:
            raise UsageError(
                "the openai package is missing", "Install it: pip install 'cuda-agent[chat]'."
            ) from None
        self._url, self._model = base_url, model
        self._openai = openai
        self._client = openai.OpenAI(
            base_url=base_url, api_key=api_key, timeout=timeout_s, max_retries=max_retries
        )
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="generation")
        self.policy_version = policy_version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Send a request; see the protocol."""
        return self._pool.submit(self._complete, request)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions in the order of the requests; see the protocol."""
        futures = [self.submit(request) for request in requests]
        return [future.result() for future in futures]

    def weights_changed(self, policy_version: str) -> None:
        """Name the weights that the server was given; giving them is not ours."""
        self.policy_version = policy_version

    def close(self) -> None:
        """Let go of threads and connections; may run twice."""
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def _complete(self, request: GenerationRequest) -> Completion:
        version = self.policy_version
        asked = _asked(request)
        try:
            answer = self._client.completions.create(model=self._model, **asked)
        except self._openai.OpenAIError as error:
            raise PolicyError(
                f"{self._url}: {str(error)[:300]}", "Is the server up, and does it serve this model?"
            ) from None
        choices = answer.model_dump().get("choices") or []
        if not choices:
            raise PolicyError(f"{self._url}: an answer without choices")
        return self._read(choices[0], request, version)

    def _read(self, choice: Mapping[str, Any], request: GenerationRequest, version: str) -> Completion:
        logprobs = choice.get("logprobs") or {}
        values, ids = logprobs.get("token_logprobs"), _ids(choice, logprobs)
        if ids is None or not isinstance(values, list) or len(values) != len(ids):
            raise PolicyError(
                f"{self._url} returns no token ids with a log-probability each",
                "Serve with vLLM, which takes return_token_ids.",
            )
        if not all(isinstance(value, int | float) for value in values):
            raise PolicyError(f"{self._url}: a log-probability is missing")
        finish = _finish(choice.get("finish_reason"), ids, request)
        return Completion(tuple(ids), tuple(float(v) for v in values), finish, version)


def _asked(request: GenerationRequest) -> dict[str, Any]:
    """Body of the request.

    Raises:
        UsageError: the server's log-probabilities would be of another distribution.
    """
    params = request.params
    if params.temperature not in (0.0, 1.0) or params.top_p != 1.0:
        raise UsageError(
            "a server reports log-probabilities at temperature 1 and top-p 1 only",
            "Sample so, or greedily with temperature 0.",
        )
    asked: dict[str, Any] = {
        "prompt": list(request.prompt_ids),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": 1.0,
        "logprobs": 1,
        "extra_body": {
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": sorted(params.stop_ids),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        },
    }
    if params.stop_strings:
        asked["stop"] = list(params.stop_strings)
    if params.seed is not None:
        asked["seed"] = params.seed
    if request.deadline is not None:
        asked["timeout"] = max(0.001, request.deadline - time.monotonic())
    return asked


def _ids(choice: Mapping[str, Any], logprobs: Mapping[str, Any]) -> list[int] | None:
    ids = choice.get("token_ids")
    if isinstance(ids, list) and all(type(i) is int for i in ids):
        return ids
    spelt = logprobs.get("tokens")
    if not isinstance(spelt, list):
        return None
    numbers = [str(token).removeprefix(_SPELT) for token in spelt if str(token).startswith(_SPELT)]
    whole = len(numbers) == len(spelt) and all(n.isdecimal() for n in numbers)
    return [int(n) for n in numbers] if whole else None


def _finish(reason: Any, ids: Sequence[int], request: GenerationRequest) -> FinishReason:
    if ids and ids[-1] in request.params.stop_ids:
        return FinishReason.STOP_ID
    if reason == "stop":
        return FinishReason.STOP_STRING if request.params.stop_strings else FinishReason.STOP_ID
    return FinishReason.LENGTH if len(ids) >= request.params.max_tokens else FinishReason.CONTEXT
