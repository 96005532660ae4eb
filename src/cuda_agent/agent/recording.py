"""What a recorded model answers, and the faults that a recorded endpoint makes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.replay import read_actions, read_steps, scripted_action
from cuda_agent.agent.policy import Action
from cuda_agent.agent.textformat import render_call
from cuda_agent.errors import UsageError

_RAMBLE = "and so on, and so forth, "


class FaultKind(StrEnum):
    """What goes wrong instead of an answer, or with it. ``value`` of the fault in brackets.

    ``RATE_LIMIT``: 429 [retry-after, seconds]. ``SERVER_ERROR``: 500 [status]. ``CUT_BODY``: half of the
    JSON body, complete by its length. ``DROP``: the connection ends within the body. ``SLOW``: the answer
    comes late [seconds]. ``ENDLESS_BODY``: a body that never ends [seconds at most]. ``EMPTY_CHOICES``:
    no choice in it. ``CUT_ARGUMENTS``: a tool call whose JSON arguments are cut off. ``UNKNOWN_TOOL``: a
    call of a tool that does not exist. ``ENDLESS_TEXT``: words up to the length limit, no call.
    """

    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    CUT_BODY = "cut_body"
    DROP = "drop"
    SLOW = "slow"
    ENDLESS_BODY = "endless_body"
    EMPTY_CHOICES = "empty_choices"
    CUT_ARGUMENTS = "cut_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    ENDLESS_TEXT = "endless_text"


ANSWER_FAULTS = {FaultKind.CUT_ARGUMENTS, FaultKind.UNKNOWN_TOOL, FaultKind.ENDLESS_TEXT}
"""Faults that are an answer of the model: each takes a turn of its own."""


@dataclass(frozen=True)
class Fault:
    """One fault; ``value`` as its kind says, its default when ``None``."""

    kind: FaultKind
    value: float | None = None


@dataclass(frozen=True)
class Recording:
    """Answers in order, each an action or a faulty answer, and the faults that come before each."""

    answers: tuple[Action | Fault, ...]
    faults: Mapping[int, tuple[Fault, ...]]


def load_recording(path: Path, faults: Sequence[tuple[int, Fault]] = ()) -> Recording:
    """Read a script or a trajectory; ``faults`` come on top, by the number (from 0) of their answer.

    Raises:
        UsageError: no such file, or a bad script.
    """
    steps = read_steps(path)
    answers: list[Action | Fault] = []
    before: dict[int, list[Fault]] = {}
    if steps[0].get("type") == "header":
        answers.extend(read_actions(path)[1])
        steps = []
    for step in steps:
        if "fault" not in step:
            answers.append(scripted_action(step, path))
            continue
        fault = parse_fault(str(step["fault"]), step.get("value"))
        if fault.kind in ANSWER_FAULTS:
            answers.append(fault)
        else:
            before.setdefault(len(answers), []).append(fault)
    for number, fault in sorted(faults, key=lambda pair: pair[0], reverse=True):
        if fault.kind in ANSWER_FAULTS:
            answers.insert(number, fault)
        else:
            before.setdefault(number, []).append(fault)
    return Recording(tuple(answers), {number: tuple(found) for number, found in before.items()})


def parse_fault(kind: str, value: Any = None) -> Fault:
    """A fault by name.

    Raises:
        UsageError: no such fault, or a value that is no number.
    """
    try:
        return Fault(FaultKind(kind), None if value is None else float(value))
    except (ValueError, TypeError):
        raise UsageError(f"bad fault {kind!r} {value or ''}", f"Faults: {', '.join(FaultKind)}.") from None


def completion(answer: Action | Fault, body: Mapping[str, Any], *, model: str) -> dict[str, Any]:
    """The endpoint's JSON for an answer to the request ``body``; as text where the request has no tools."""
    number = sum(m.get("role") == "assistant" for m in body["messages"])
    finish = "stop"
    message: dict[str, Any]
    if isinstance(answer, Fault):
        message, finish = _faulty_answer(answer, number, body)
    elif body.get("tools") or not answer.calls:
        calls = [
            _call(f"call_{number}_{i}", c.name, json.dumps(dict(c.arguments)))
            for i, c in enumerate(answer.calls)
        ]
        message = {"role": "assistant", "content": answer.text or None}
        if calls:
            message["tool_calls"], finish = calls, "tool_calls"
    else:
        words = "\n".join((answer.text, *map(render_call, answer.calls)))
        message = {"role": "assistant", "content": words}
    if not body.get("tools") and not isinstance(answer, Fault) and not answer.calls:
        message["content"] = f"<finished>{answer.text}</finished>"
    prompt, completion = count_tokens(body["messages"]), max(1, len(json.dumps(message)) // 4)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model", model),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
    }


def _faulty_answer(fault: Fault, number: int, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if fault.kind is FaultKind.CUT_ARGUMENTS:
        call = _call(
            f"call_{number}_0", "Write", '{"file_path": "kernels/scale.cu", "content": "__global__ vo'
        )
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "length"
    if fault.kind is FaultKind.UNKNOWN_TOOL:
        call = _call(f"call_{number}_0", "WebSearch", '{"query": "fast softmax kernel"}')
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    length = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16_384)
    return {"role": "assistant", "content": (_RAMBLE * (length // 5 + 1))[: 4 * length]}, "length"


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def count_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """About four characters a token."""
    return sum(len(json.dumps(message)) for message in messages) // 4 + 1
