"""Between our messages and the JSON of an OpenAI-compatible endpoint; lenient in what it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuda_agent.agent.output import cap, writable
from cuda_agent.agent.policies.options import PolicyOptions
from cuda_agent.agent.policy import Message, Role, ToolSpec
from cuda_agent.agent.textformat import NO_ACTION, has_calls, parse_answer
from cuda_agent.trajectory import ToolCall, Usage

_MAX_RAMBLE_CHARS = 4_000
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class NonsenseError(ValueError):
    """The endpoint's answer is not what it should be; worth another try."""


@dataclass(frozen=True)
class Answer:
    """One answer of an endpoint.

    Attributes:
        text: reasoning (in ``<think>`` tags) and words.
        calls, malformed: see :class:`cuda_agent.agent.policy.Action`.
        usage: tokens and cost, where reported.
        context_tokens: tokens of the context after the answer, where reported.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    usage: Usage | None = None
    context_tokens: int | None = None


def tool_payload(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The tools as the endpoint takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


def native_messages(messages: Sequence[Message], *, keep_reasoning: bool) -> list[dict[str, Any]]:
    """The history with native tool calls. Earlier reasoning is left out, or sent in its own field."""
    payload: list[dict[str, Any]] = []
    for message in messages:
        if message.role is Role.TOOL:
            payload.append({"role": "tool", "tool_call_id": message.call_id, "content": message.content})
        elif message.role is Role.ASSISTANT:
            payload.append(_assistant(message, keep_reasoning))
        else:
            payload.append({"role": message.role, "content": message.content})
    return payload


def without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The history with the reasoning of earlier answers left out."""
    return [
        replace(message, content=_THOUGHT.sub("", message.content))
        if message.role is Role.ASSISTANT
        else message
        for message in messages
    ]


def read_answer(
    data: Any, tools: Sequence[ToolSpec], *, native: bool, id_prefix: str, options: PolicyOptions
) -> Answer:
    """Take an endpoint's JSON apart. What the model did wrong becomes ``malformed``.

    Raises:
        NonsenseError: no answer in it.
    """
    data = writable(data)
    choices = data.get("choices") if isinstance(data, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise NonsenseError("the answer holds no choices")
    words, reasoning = _text(message.get("content")), _text(_reasoning(message))
    cut_off = choice.get("finish_reason") == "length"
    answer = Answer(words)
    raw_calls = message.get("tool_calls")
    if isinstance(raw_calls, list) and raw_calls:
        answer = _native_calls(words, raw_calls, id_prefix=id_prefix, cut_off=cut_off)
    elif not native or has_calls(words):
        answer = _text_calls(words, tools, native=native, id_prefix=id_prefix, cut_off=cut_off)
    elif cut_off:
        answer = Answer(words, malformed=(_cut_off_message(),))
    elif not words.strip():
        answer = Answer("", malformed=(_empty_message(choice),))
    text = cap(answer.text, _MAX_RAMBLE_CHARS) if cut_off and not answer.calls else answer.text
    if reasoning:
        text = f"<think>\n{reasoning.strip()}\n</think>\n\n{text}"
    usage, context_tokens = read_usage(data.get("usage"), options)
    return replace(answer, text=text, usage=usage, context_tokens=context_tokens)


def read_usage(data: Any, options: PolicyOptions) -> tuple[Usage | None, int | None]:
    """Tokens and cost of one answer, and the tokens of the context after it, where reported."""
    if not isinstance(data, Mapping):
        return None, None
    prompt, completion = _count(data.get("prompt_tokens")), _count(data.get("completion_tokens"))
    if not prompt:
        return None, None
    reasoning = _count(_detail(data, "completion_tokens_details", "reasoning_tokens"))
    cached = min(prompt, _count(_detail(data, "prompt_tokens_details", "cached_tokens")))
    left_out = 0 if options.keep_reasoning else reasoning
    usage = Usage(prompt, completion, _cost(data, prompt - cached, cached, completion, options))
    return usage, prompt + max(0, completion - left_out)


def _cost(
    data: Mapping[str, Any], prompt: int, cached: int, completion: int, options: PolicyOptions
) -> float | None:
    if options.prompt_price is None and options.completion_price is None:
        cost = data.get("cost")  # some routers report it
        return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None
    prompt_price = options.prompt_price or 0.0
    cached_price = prompt_price if options.cached_price is None else options.cached_price
    total = prompt * prompt_price + cached * cached_price + completion * (options.completion_price or 0.0)
    return total / 1e6


def _native_calls(words: str, raw_calls: list[Any], *, id_prefix: str, cut_off: bool) -> Answer:
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for number, raw in enumerate(raw_calls):
        function = raw.get("function") if isinstance(raw, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            malformed.append("A tool call without a name was received. Send the whole call again.")
            continue
        arguments, problem = _arguments(function.get("arguments"))
        if problem:
            why = " The answer was cut off at its length limit: send less at once." if cut_off else ""
            malformed.append(f"The call of {name} was not run: {problem}.{why} Send the whole call again.")
            continue
        given = raw.get("id")
        taken = {call.id for call in calls}
        usable = isinstance(given, str) and given and given not in taken
        calls.append(ToolCall(given if usable else f"{id_prefix}_{number}", name, arguments))
    return Answer(words, tuple(calls), tuple(malformed))


def _arguments(raw: Any) -> tuple[dict[str, Any], str]:
    """Arguments, and what is wrong with them."""
    if raw is None or raw == "":
        return {}, ""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw, strict=False)
        except json.JSONDecodeError as error:
            return {}, f"its arguments are not valid JSON ({error}), they end with {raw[-60:]!r}"
    if not isinstance(raw, dict):
        return {}, f"its arguments must be a JSON object, not {type(raw).__name__}"
    return writable(raw), ""


def _text_calls(
    words: str, tools: Sequence[ToolSpec], *, native: bool, id_prefix: str, cut_off: bool
) -> Answer:
    parsed = parse_answer(words, tools, id_prefix=id_prefix)
    if parsed.calls or parsed.malformed or parsed.finished or native:
        return Answer(parsed.text, parsed.calls, parsed.malformed)
    return Answer(words, malformed=(_cut_off_message() if cut_off else NO_ACTION,))


def _assistant(message: Message, keep_reasoning: bool) -> dict[str, Any]:
    words = _THOUGHT.sub("", message.content)
    payload: dict[str, Any] = {"role": "assistant", "content": words}
    if keep_reasoning and (thought := re.match(r"<think>\n(.*?)\n</think>", message.content, re.DOTALL)):
        payload["reasoning_content"] = thought[1]
    if message.calls:
        payload["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.calls
        ]
    elif not words:
        payload["content"] = "(no words)"  # several endpoints refuse an empty message
    return payload


def _text(content: Any) -> str:
    """Text of a content field: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _reasoning(message: Mapping[str, Any]) -> Any:
    return message.get("reasoning_content") or message.get("reasoning")


def _cut_off_message() -> str:
    return "The answer was cut off at its length limit before a tool call. Write less, then act."


def _empty_message(choice: Mapping[str, Any]) -> str:
    if choice.get("finish_reason") == "content_filter":
        return "The endpoint's content filter withheld the answer. Say it differently."
    return "The answer was empty. Call a tool, or say in words that the work is done."


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _detail(data: Mapping[str, Any], group: str, name: str) -> Any:
    details = data.get(group)
    return details.get(name) if isinstance(details, Mapping) else None
