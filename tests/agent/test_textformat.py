"""The plain-text form of tool calls: exact round trip, tolerant reading, useful messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.policy import Message, Role, ToolSpec
from cuda_agent.agent.textformat import has_calls, instructions, parse_answer, plain_messages, render_call
from cuda_agent.agent.tools import Toolbox
from cuda_agent.trajectory import ToolCall


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[ToolSpec]:
    with Toolbox(Path(tmp_path_factory.mktemp("w")), {}) as tools:
        return tools.specs()


CODE = 'template <typename T>\n__global__ void k(T* x) { printf("</parameter>\\n"); }\n'
BASH = "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("t_0", "Bash", {"command": "ls -l | grep '\"x\"'", "timeout_s": 2.5}),
        ToolCall("t_0", "Write", {"file_path": "k.cu", "content": CODE}),
        ToolCall("t_0", "Write", {"file_path": "k.cu", "content": "\n\n two blank lines around \n\n"}),
        ToolCall("t_0", "Write", {"file_path": "empty", "content": ""}),
        ToolCall(
            "t_0",
            "MultiEdit",
            {"file_path": "f", "edits": [{"old_string": "a\n", "new_string": "</function>"}]},
        ),
    ],
)
def test_a_call_survives_the_round_trip(call: ToolCall, specs: list[ToolSpec], tmp_path: Path) -> None:
    parsed = parse_answer(f"I will act.\n{render_call(call)}", specs, id_prefix="t")
    assert parsed.text == "I will act." and not parsed.malformed
    (found,) = parsed.calls
    with Toolbox(tmp_path, {}) as tools:
        assert tools.check(found) == ""
    from cuda_agent.agent.schema import check_arguments

    schema = next(spec.parameters for spec in specs if spec.name == call.name)
    assert check_arguments(schema, found.arguments) == dict(call.arguments)


@pytest.mark.parametrize(
    "answer",
    [
        BASH,
        f"```xml\n{BASH}\n```",
        "<function=Bash><parameter=command>ls</parameter></function>",
        "<tool_call><function=Bash>\n<parameter=command>\nls\n</parameter>\n</tool_call>",
        '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>```json\n{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n```</tool_call>',
        '<tool_call>{"name": "Bash", "parameters": {"command": "ls"}}',
        f"<think>maybe <tool_call> {BASH} no</think>\n{BASH}",
    ],
)
def test_what_models_write_is_read(answer: str, specs: list[ToolSpec]) -> None:
    parsed = parse_answer(answer, specs, id_prefix="t")
    assert parsed.calls == (ToolCall("t_0", "Bash", {"command": "ls"}),) and not parsed.malformed
    assert has_calls(answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (BASH[:60], "cut off inside parameter command"),
        (BASH.split("</function>", maxsplit=1)[0], "cut off inside parameter command"),
        ("<tool_call>\n<function=Bash>\n", "</function> is missing"),
        ('<tool_call>{"name": "Bash", "arguments": {"comm', "not valid JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'must be {"name"'),
        ("<tool_call>Bash ls</tool_call>", "has no <function=NAME>"),
        ("<think>thinking and thinking", "ended inside <think>"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(answer: str, words: str, specs: list[ToolSpec]) -> None:
    parsed = parse_answer(answer, specs, id_prefix="t")
    assert not parsed.calls and len(parsed.malformed) == 1 and words in parsed.malformed[0]
    assert answer.strip() in parsed.text, "the model sees what it wrote"


def test_several_calls_good_and_bad(specs: list[ToolSpec]) -> None:
    parsed = parse_answer(f"a\n{BASH}\nb\n<tool_call>{{oops</tool_call>\nc\n{BASH}\nd", specs, id_prefix="t")
    assert [call.id for call in parsed.calls] == ["t_0", "t_1"] and len(parsed.malformed) == 1
    assert parsed.text.split() == ["a", "b", "<tool_call>{oops</tool_call>", "c", "d"]


def test_finishing_is_said_with_a_tag(specs: list[ToolSpec]) -> None:
    assert parse_answer("<finished>all done</finished>", specs, id_prefix="t").finished
    assert parse_answer("<finished/>", specs, id_prefix="t").finished
    assert not parse_answer("It is finished.", specs, id_prefix="t").finished
    assert not parse_answer("<think><finished></think> not yet", specs, id_prefix="t").finished


def test_instructions_name_every_tool_and_argument(specs: list[ToolSpec]) -> None:
    text = instructions(specs)
    for spec in specs:
        assert f"## {spec.name}" in text and all(
            f"- {name}: " in text for name in spec.parameters["properties"]
        )
    assert parse_answer(text, specs, id_prefix="t").calls, "its example is a well-formed call"


def test_history_without_tool_roles_alternates(specs: list[ToolSpec]) -> None:
    call = ToolCall("c", "Bash", {"command": "ls"})
    messages = [
        Message(Role.SYSTEM, "S"),
        Message(Role.USER, "U"),
        Message(Role.ASSISTANT, "words", (call, call)),
        Message(Role.TOOL, "one", call_id="c"),
        Message(Role.TOOL, "two", call_id="c"),
        Message(Role.USER, "and a complaint"),
        Message(Role.ASSISTANT, ""),
    ]
    plain = plain_messages(messages, specs)
    assert [m["role"] for m in plain] == ["system", "user", "assistant", "user", "assistant"]
    assert plain[2]["content"] == f"words\n{BASH}\n{BASH}"
    assert (
        "one" in plain[3]["content"] and "two" in plain[3]["content"] and "complaint" in plain[3]["content"]
    )
