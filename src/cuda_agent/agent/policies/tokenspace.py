"""The context of a local model as token ids: append-only, sampled ids kept as they are.

The chat template renders text, and only what is new is tokenised: the opening, and after each answer the
messages that follow it. Ids the model sampled are never derived from text again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cuda_agent.agent.policies.options import ToolFormat
from cuda_agent.agent.policies.wire import native_messages, tool_payload, without_thoughts
from cuda_agent.agent.policy import Message, Role, ToolSpec
from cuda_agent.agent.textformat import parse_answer, plain_messages, render_observation

# For tokenizers without a template of their own.
_PLAIN_TEMPLATE = (
    "{% for m in messages %}### {{ m.role }}\n{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}### assistant\n{% endif %}"
)
_MARK = "\u2042ANSWER\u2042"
_PROBE = {"probe_argument": "probe value"}


class TokenSpace:
    """Renders and tokenises for one tokenizer.

    Args:
        tokenizer: of transformers.
        tool_format: ``AUTO`` uses the chat template's own tool calls where we can read them back.
    """

    def __init__(self, tokenizer: Any, tool_format: ToolFormat) -> None:
        self._tokenizer = tokenizer
        self._template: str | None = None if tokenizer.chat_template else _PLAIN_TEMPLATE
        self._tool_format = tool_format
        self._native: bool | None = None
        self._system_role = self._renders([_plain("system", "s"), _plain("user", "u")])

    def is_native(self, tools: Sequence[ToolSpec]) -> bool:
        """Whether calls are written as the chat template says, rather than in the text format."""
        if self._native is None:
            wanted = self._tool_format is not ToolFormat.TEXT
            self._native = wanted and (self._tool_format is ToolFormat.NATIVE or self._reads_back(tools))
        return self._native

    def context(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stop_ids: set[int]
    ) -> tuple[list[int], list[int]]:
        """Ids of the context so far (as recorded), and ids of what is new, up to the next answer.

        A history with answers that no local model made is rendered whole, once; what follows it is
        appended to that.
        """
        answers = [n for n, message in enumerate(messages) if message.role is Role.ASSISTANT]
        foreign = max((n for n in answers if messages[n].tokens is None), default=-1)
        records = [record for n in answers if n > foreign and (record := messages[n].tokens) is not None]
        if not records:
            return [], self._tokenise(self._opening(messages, tools))
        old = [i for record in records for i in (*record.prompt_ids, *record.completion_ids)]
        text = self._following(messages[answers[-1] + 1 :], tools)
        last = records[-1].completion_ids[-1:]
        if last and last[0] in stop_ids:
            text = text.removeprefix(self._tokenizer.decode(list(last)))
        return old, self._tokenise(text)

    def end_of_answer(self) -> int | None:
        """Id of the special token that the template writes after an answer, if it does."""
        after = self._after_mark([_plain("user", "u"), _plain("assistant", _MARK)], None, prompt=False)
        ids = self._tokenise(after)
        special = set(self._tokenizer.all_special_ids) | set(self._tokenizer.added_tokens_decoder)
        return ids[0] if ids and ids[0] in special else None

    def _opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        if self.is_native(tools):
            return self._render(native_messages(messages, keep_reasoning=False), tools)
        return self._render(self._roles(plain_messages(without_thoughts(messages), tools)), None)

    def _following(self, new: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Text after an answer: its end as the template writes it, the new messages, the next prompt."""
        before = [_plain("user", "u"), _plain("assistant", _MARK)]
        if self.is_native(tools):
            return self._after_mark(
                [*before, *native_messages(new, keep_reasoning=False)], tools, prompt=True
            )
        words = [render_observation(m) if m.role is Role.TOOL else m.content for m in new]
        return self._after_mark([*before, _plain("user", "\n".join(words))], None, prompt=True)

    def _after_mark(
        self, messages: list[dict[str, Any]], tools: Sequence[ToolSpec] | None, *, prompt: bool
    ) -> str:
        return self._render(messages, tools, prompt=prompt).partition(_MARK)[2]

    def _reads_back(self, tools: Sequence[ToolSpec]) -> bool:
        """Whether the template shows tools, and writes a call and its answer in a form that we can read."""
        name = tools[0].name if tools else "Bash"
        call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": _PROBE}}
        asked = [_plain("user", "u")]
        answered: list[dict[str, Any]] = [*asked, {**_plain("assistant", _MARK), "tool_calls": [call]}]
        result = {"role": "tool", "tool_call_id": "c0", "content": "probe result"}
        try:
            if not all(tool.name in self._render(asked, tools) for tool in tools):
                return False
            written = self._after_mark(answered, tools, prompt=False)
            after = self._after_mark([*asked, _plain("assistant", _MARK), dict(result)], tools, prompt=True)
        except _template_errors():
            return False
        calls = parse_answer(written, tools, id_prefix="c").calls
        return "probe result" in after and [(c.name, c.arguments) for c in calls] == [(name, _PROBE)]

    def _roles(self, plain: list[dict[str, str]]) -> list[dict[str, str]]:
        """Without a system role, where the template has none: its text goes before the first user message."""
        if self._system_role or plain[0]["role"] != "system":
            return plain
        first = _plain("user", f"{plain[0]['content']}\n\n{plain[1]['content']}")
        return [first, *plain[2:]]

    def _renders(self, messages: list[dict[str, str]]) -> bool:
        try:
            return messages[0]["content"] in self._render(messages, None)
        except _template_errors():
            return False

    def _render(
        self, messages: Sequence[Any], tools: Sequence[ToolSpec] | None, *, prompt: bool = True
    ) -> str:
        text: str = self._tokenizer.apply_chat_template(
            _decoded(messages),
            tools=tool_payload(tools) if tools else None,
            chat_template=self._template,
            add_generation_prompt=prompt,
            tokenize=False,
        )
        return text

    def _tokenise(self, text: str) -> list[int]:
        # The template writes the special tokens itself.
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _plain(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _decoded(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Arguments as objects: templates write them as JSON themselves."""
    decoded = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        decoded.append({**message, "tool_calls": calls} if calls else dict(message))
    return decoded


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _template_errors() -> tuple[type[Exception], ...]:
    import jinja2

    return (jinja2.TemplateError, TypeError, ValueError, KeyError)
