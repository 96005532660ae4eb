"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp or a vendor."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.agent.policies.endpoint import Endpoint, RefusedError
from cuda_agent.agent.policies.options import PolicyOptions, ToolFormat
from cuda_agent.agent.policies.wire import (
    Answer,
    native_messages,
    read_answer,
    tool_payload,
    without_thoughts,
)
from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role, ToolSpec
from cuda_agent.agent.textformat import plain_messages
from cuda_agent.errors import PolicyError
from cuda_agent.trajectory import Usage

_log = logging.getLogger(__name__)

_CONTEXT_WORDS = ("context length", "context_length", "context size", "context window", "maximum context")
_MIN_ANSWER_TOKENS = 256


class ChatPolicy:
    """Native tool calls, or the text format where the endpoint refuses tools. Tokens and cost are summed.

    Args:
        model: name at the endpoint.
        base_url: ``http://host:port/v1``; the client's default when ``None``.

    Raises:
        UsageError: the ``openai`` package or the key is missing.
    """

    def __init__(self, model: str, *, base_url: str | None = None, options: PolicyOptions) -> None:
        self._model = model
        self._options = options
        self._endpoint = Endpoint(base_url=base_url, options=options)
        self._native = options.tool_format is not ToolFormat.TEXT
        self._length_field: str | None = (
            "max_completion_tokens" if "api.openai.com" in self._endpoint.url else "max_tokens"
        )
        self._context_tokens = 0
        self._max_context: int | None = None
        self._deadline: float | None = None
        self.usage = Usage()
        """Sum over all answers."""

    @property
    def name(self) -> str:
        """``chat:MODEL``."""
        return f"chat:{self._model}"

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:  # noqa: ARG002
        """Begin an episode; the history comes with each request."""
        self._max_context, self._deadline = context.max_context, context.deadline
        self._context_tokens = 0

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Ask the endpoint for the next action.

        Raises:
            PolicyError: the endpoint is down, refuses, or answers nonsense beyond the retries.
        """
        tried: set[str] = set()
        while True:
            try:
                answer = self._ask(messages, tools)
                break
            except RefusedError as error:
                if _is_context(error) and (self._length_field is None or "length" in tried):
                    return Action("", context_full=True)
                self._adapt(error, tried)
        self._sum(answer.usage)
        self._context_tokens = answer.context_tokens or 0
        return Action(
            answer.text,
            answer.calls,
            answer.malformed,
            usage=answer.usage,
            context_tokens=answer.context_tokens,
        )

    def close(self) -> None:
        """Close the connections; may run twice."""
        self._endpoint.close()

    def _ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Answer:
        num_answers = sum(message.role is Role.ASSISTANT for message in messages)
        native = self._native or not tools

        def read(data: Any) -> Answer:
            return read_answer(
                data, tools, native=native, id_prefix=f"call_{num_answers}", options=self._options
            )

        request = self._request(messages, tools)
        answer: Answer = self._endpoint.complete(request, read=read, deadline=self._deadline)
        return answer

    def _request(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Mapping[str, Any]:
        options = self._options
        request: dict[str, Any] = {"model": self._model}
        if self._native or not tools:
            request["messages"] = native_messages(messages, keep_reasoning=options.keep_reasoning)
            if tools:  # endpoints refuse an empty list
                request["tools"] = tool_payload(tools)
        else:
            request["messages"] = plain_messages(without_thoughts(messages), tools)
        for name in ("temperature", "top_p", "seed"):
            if (value := getattr(options, name)) is not None:
                request[name] = value
        if self._length_field is not None:
            left = options.max_tokens
            if self._max_context is not None:
                left = min(left, max(_MIN_ANSWER_TOKENS, self._max_context - self._context_tokens))
            request[self._length_field] = left
        return request

    def _adapt(self, error: RefusedError, tried: set[str]) -> None:
        """Change what the endpoint refuses, once for each matter.

        Raises:
            PolicyError: there is nothing to change.
        """
        words = error.message.lower()
        if self._native and self._options.tool_format is ToolFormat.AUTO and "tool" in words:
            _log.warning("endpoint refuses tools (%s); going on with the text format", error.message)
            self._native = False
        elif "max_completion_tokens" in words and self._length_field == "max_tokens":
            self._length_field = "max_completion_tokens"
        elif _is_context(error) and self._length_field is not None and "length" not in tried:
            # The endpoint's own context may be smaller than ours: let it choose the answer's length.
            tried.add("length")
            self._length_field = None
        else:
            raise PolicyError(
                f"endpoint {self._endpoint.url} refuses the request ({error.status}: {error.message})",
                f"Check the model's name ({self._model}) and the options.",
            ) from None

    def _sum(self, usage: Usage | None) -> None:
        if usage is None:
            return
        known = [cost for cost in (self.usage.cost_usd, usage.cost_usd) if cost is not None]
        self.usage = Usage(
            self.usage.prompt_tokens + usage.prompt_tokens,
            self.usage.completion_tokens + usage.completion_tokens,
            sum(known) if known else None,
        )


def _is_context(error: RefusedError) -> bool:
    return any(word in error.message.lower() for word in _CONTEXT_WORDS)
