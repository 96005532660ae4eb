"""A plain-text form of tool calls, for models and endpoints without native ones.

Calls are written with one tag for each argument, so that source code needs no escaping::

    <tool_call>
    <function=Write>
    <parameter=file_path>
    kernels/scale.cu
    </parameter>
    <parameter=content>
    ...
    </parameter>
    </function>
    </tool_call>

The form is that of Qwen3-Coder's chat template. The parser also takes the JSON form of Hermes and Qwen
(``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``), calls without the outer tag, and fences
around either. ``<finished>...</finished>`` ends the episode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.agent.output import writable
from cuda_agent.agent.policy import Message, Role, ToolSpec
from cuda_agent.agent.schema import signature_text
from cuda_agent.trajectory import ToolCall

EXAMPLE = (
    "<tool_call>\n<function=Bash>\n<parameter=command>\nls kernels\n</parameter>\n</function>\n</tool_call>"
)
NO_ACTION = (
    f"No tool call was found. Every answer must hold at least one, in this form:\n{EXAMPLE}\n"
    "or, when the work is done: <finished>what was done</finished>"
)

_OPENER = re.compile(r"<tool_call>\s*|<function=")
_FUNCTION = re.compile(r"<function=\s*([^>\n]*?)\s*>")
_PARAMETER = re.compile(r"\s*<parameter=\s*([^>\n]*?)\s*>")
# A value may hold a closing tag of its own (a text about this format): only one that is followed by what
# can follow a value ends it.
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>))")
_CLOSERS = re.compile(r"\s*(?:</function>)?\s*(?:</tool_call>)?(?:\s*```)?")
_FENCE = re.compile(r"(?:```(?:json|xml|tool_call)?\s*)")
_FINISHED = re.compile(r"<finished\s*/?>(?:(.*?)</finished>)?", re.DOTALL)
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class ParsedAnswer:
    """A model's answer taken apart.

    Attributes:
        text: its words; well-formed calls cut out, malformed ones left in.
        calls: well-formed calls, in order.
        malformed: for each malformed one, what is wrong.
        finished: it says that the work is done.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    finished: bool = False


class _Malformed(ValueError):
    pass


def instructions(tools: Sequence[ToolSpec]) -> str:
    """What a model needs to know of the form and the tools; to be appended to the system message."""
    lines = [
        "# Tools",
        "You act by writing tool calls in this form, one tag for each argument, values as they are "
        "(no quoting, no escaping):",
        EXAMPLE,
        "Lists and objects are written as JSON. The answers come in <tool_response> tags. "
        "Every answer of yours must hold at least one tool call. When the work is done, write "
        "<finished>what was done</finished> instead.",
        "The tools:",
    ]
    for tool in tools:
        lines.append(f"## {tool.name}\n{tool.description}\nArguments: {signature_text(tool.parameters)}.")
        for name, property_ in tool.parameters.get("properties", {}).items():
            if text := property_.get("description"):
                lines.append(f"- {name}: {text}")
    return "\n".join(lines)


def has_calls(text: str) -> bool:
    """Whether the text, thoughts left out, seems to hold a call in this form."""
    return _OPENER.search(text, text.rfind(_THOUGHT_END) + 1) is not None


def parse_answer(text: str, tools: Sequence[ToolSpec], *, id_prefix: str) -> ParsedAnswer:
    """Take an answer apart. Calls get the ids ``{id_prefix}_0``, ``{id_prefix}_1``, ...

    Never raises: what cannot be read becomes a message for the model in ``malformed``.
    """
    schemas = {tool.name: tool.parameters for tool in tools}
    start = text.rfind(_THOUGHT_END) + 1
    if not start and "<think>" in text:
        return ParsedAnswer(text, malformed=("The answer ended inside <think>: think less, then act.",))
    words = [text[:start]]
    calls: list[ToolCall] = []
    malformed: list[str] = []
    while opener := _OPENER.search(text, start):
        try:
            name, arguments, end = _parse_call(text, opener, schemas)
            words.append(text[start : opener.start()])
            calls.append(ToolCall(f"{id_prefix}_{len(calls)}", name, arguments))
        except _Malformed as error:
            malformed.append(str(error))
            closer = text.find("</tool_call>", opener.end())
            end = len(text) if closer < 0 else closer + len("</tool_call>")
            words.append(text[start:end])
        start = end
    words.append(text[start:])
    finished = _FINISHED.search(text, text.rfind(_THOUGHT_END) + 1)
    return ParsedAnswer("".join(words).strip(), tuple(calls), tuple(malformed), finished is not None)


def render_call(call: ToolCall) -> str:
    """The call in the form above; parses back to the same arguments."""
    parameters = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def render_answer(message: Message) -> str:
    """An assistant message as the model would have written it."""
    return "\n".join(part for part in (message.content, *map(render_call, message.calls)) if part)


def render_observation(message: Message) -> str:
    """A tool's answer as the model reads it."""
    return f"<tool_response>\n{message.content}\n</tool_response>"


def plain_messages(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, str]]:
    """The history without tool roles: system, then user and assistant in turn."""
    plain: list[dict[str, str]] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            content, role = message.content, "system"
            if tools:
                content = f"{content}\n\n{instructions(tools)}"
        elif message.role is Role.ASSISTANT:
            content, role = render_answer(message) or "(no words)", "assistant"
        else:
            content = render_observation(message) if message.role is Role.TOOL else message.content
            role = "user"
        if plain and plain[-1]["role"] == role:
            plain[-1]["content"] += f"\n{content}"
        else:
            plain.append({"role": role, "content": content})
    return plain


def _parse_call(
    text: str, opener: re.Match[str], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any], int]:
    """Name, arguments and end of the call at ``opener``."""
    position = opener.start() if opener[0].startswith("<function") else opener.end()
    if fence := _FENCE.match(text, position):
        position = fence.end()
    if text.startswith("{", position):
        return _parse_json(text, position)
    function = _FUNCTION.match(text, position)
    if function is None:
        raise _Malformed(f"The tool call at {_excerpt(text, opener)} has no <function=NAME>. Use:\n{EXAMPLE}")
    return _parse_tags(text, function, schemas)


def _parse_json(text: str, position: int) -> tuple[str, dict[str, Any], int]:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _Malformed(
            f"The tool call is not valid JSON ({error.msg}) or was cut off. Send the whole call again, "
            f"or use this form, which needs no escaping:\n{EXAMPLE}"
        ) from None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    arguments = writable(_json_object(arguments) if isinstance(arguments, str) else arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _Malformed('A JSON tool call must be {"name": "...", "arguments": {...}}.')
    closers = _CLOSERS.match(text, end)
    return name, arguments, closers.end() if closers else end


def _json_object(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _parse_tags(
    text: str, function: re.Match[str], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any], int]:
    name, position = function[1], function.end()
    properties = schemas.get(name, {}).get("properties", {})
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(text, position):
        end = _VALUE_END.search(text, parameter.end())
        if end is None:
            raise _Malformed(
                f"The call of {name} was cut off inside parameter {parameter[1]}. "
                "Send the whole call again; write a long file in several parts."
            )
        value = text[parameter.end() : end.start()]
        arguments[parameter[1]] = _value(value, properties.get(parameter[1], {}))
        position = end.end()
    closers = _CLOSERS.match(text, position)
    if closers is None or "</" not in closers[0]:
        raise _Malformed(
            f"The call of {name} was cut off: </function> is missing. Send the whole call again."
        )
    return name, arguments, closers.end()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value between two tags; numbers and structures are converted when checked against the schema."""
    if schema.get("type", "string") == "string":
        return text.removeprefix("\n").removesuffix("\n")
    return None if text.strip() in ("null", "None") else text.strip()


def _excerpt(text: str, opener: re.Match[str]) -> str:
    return repr(text[opener.start() : opener.start() + 60])
