"""The chat policy: real openai client, real HTTP, a recorded model with faults."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.policies import make_policy
from cuda_agent.agent.policies.endpoint import parse_retry_after
from cuda_agent.agent.policies.options import PolicyOptions
from cuda_agent.agent.policies.wire import NonsenseError, native_messages, read_answer, read_usage
from cuda_agent.agent.policy import Message, Role
from cuda_agent.agent.recorded_server import RecordedServer
from cuda_agent.agent.recording import load_recording
from cuda_agent.config import EpisodeConfig
from cuda_agent.errors import UsageError
from cuda_agent.trajectory import Ending, ToolCall, Usage

pytest.importorskip("openai", reason="policy chat needs the openai package")

LS = {"text": "I look.", "calls": [{"name": "Bash", "arguments": {"command": "echo seen"}}]}
DONE = {"text": "All done."}


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "CUDA_AGENT_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RecordedServer]]:
    with ExitStack() as servers:

        def start(*steps: Any, **options: Any) -> RecordedServer:
            path = tmp_path / "answers.json"
            path.write_text(json.dumps(steps))
            return servers.enter_context(RecordedServer(load_recording(path), **options))

        yield start


def chat(server: RecordedServer, **options: Any) -> Any:
    return make_policy("chat:recorded", base_url=server.url, **{"backoff_s": 0.01, **options})


def test_native_tool_calls_usage_and_cost(serve: Any, episode: Any) -> None:
    server = serve(LS, DONE)
    policy = chat(server, prompt_price=2.0, completion_price=10.0, temperature=0.5)
    done = episode(policy)
    assert done.ending is Ending.FINISHED
    first, last = done.trajectory.turns
    assert first.observations[0].text == "seen" and last.text == "All done."
    request = server.requests[0]
    assert request["temperature"] == 0.5 and len(request["tools"]) == 10 and "top_p" not in request
    assert server.requests[1]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call_0_0",
        "content": "seen",
    }
    used = [turn.usage for turn in done.trajectory.turns]
    prompt, completion = sum(u.prompt_tokens for u in used), sum(u.completion_tokens for u in used)
    assert policy.usage.prompt_tokens == prompt > 0 and policy.usage.completion_tokens == completion > 0
    assert policy.usage.cost_usd == pytest.approx((2 * prompt + 10 * completion) / 1e6)


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "rate_limit", "value": 0.2},
        {"fault": "server_error"},
        {"fault": "server_error", "value": 503},
        {"fault": "cut_body"},
        {"fault": "drop"},
        {"fault": "empty_choices"},
        {"fault": "slow", "value": 20},
        {"fault": "endless_body", "value": 20},
    ],
    ids=lambda fault: fault["fault"],
)
def test_a_fault_of_the_endpoint_is_retried(serve: Any, episode: Any, fault: dict[str, Any]) -> None:
    server = serve(LS, fault, fault, DONE)
    started = time.monotonic()
    done = episode(chat(server, timeout_s=0.6))
    assert done.ending is Ending.FINISHED and len(done.trajectory.turns) == 2
    assert len(server.requests) == 4, "each fault cost one try"
    if fault["fault"] == "rate_limit":
        assert time.monotonic() - started >= 0.4, "retry-after is honoured"


@pytest.mark.parametrize("kind", ["server_error", "cut_body", "drop", "rate_limit", "empty_choices"])
def test_a_fault_that_stays_is_a_policy_error_in_one_line(serve: Any, episode: Any, kind: str) -> None:
    server = serve(LS, *[{"fault": kind, "value": 500 if kind == "server_error" else 0.01}] * 9, DONE)
    done = episode(chat(server, max_retries=2))
    assert done.ending is Ending.POLICY_ERROR and len(done.trajectory.turns) == 1
    assert server.url in done.detail and "3 tries" in done.detail and "\n" not in done.detail
    assert len(server.requests) == 4


def test_cut_off_arguments_unknown_tool_and_endless_text_go_back_to_the_model(
    serve: Any, episode: Any
) -> None:
    steps = [{"fault": kind} for kind in ("cut_arguments", "unknown_tool", "endless_text")]
    server = serve(*steps, LS, DONE)
    done = episode(chat(server, max_tokens=2000))
    assert done.ending is Ending.FINISHED
    cut, unknown, endless, *_ = done.trajectory.turns
    assert "not valid JSON" in cut.malformed[0] and "cut off at its length limit" in cut.malformed[0]
    assert not cut.calls and server.requests[1]["messages"][-1] == {
        "role": "user",
        "content": cut.malformed[0],
    }
    assert "no tool 'WebSearch'" in unknown.malformed[0] and unknown.observations[0].is_error
    assert "before a tool call" in endless.malformed[0] and len(endless.text) < 4200
    assert len(done.trajectory.turns) == 5


def test_endless_text_again_and_again_ends_as_format_errors(serve: Any, episode: Any) -> None:
    server = serve(*[{"fault": "endless_text"}] * 10)
    done = episode(chat(server, max_tokens=500), config=EpisodeConfig(max_format_errors=3))
    assert done.ending is Ending.FORMAT_ERRORS and len(server.requests) == 3


def test_text_format_where_the_endpoint_refuses_tools(serve: Any, episode: Any, caplog: Any) -> None:
    server = serve(LS, DONE, takes_tools=False)
    with caplog.at_level(logging.WARNING):
        done = episode(chat(server))
    assert done.ending is Ending.FINISHED and "text format" in caplog.text
    assert done.trajectory.turns[0].observations[0].text == "seen"
    refused, first, second = server.requests
    assert "tools" in refused and "tools" not in first
    assert "<tool_call>" in first["messages"][0]["content"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert "<tool_response>\nseen\n</tool_response>" in second["messages"][-1]["content"]


def test_text_format_on_demand_and_native_on_demand(serve: Any, episode: Any) -> None:
    server = serve(LS, DONE)
    assert episode(chat(server, tool_format="text")).ending is Ending.FINISHED
    assert not any("tools" in request for request in server.requests)
    done = episode(chat(serve(LS, takes_tools=False), tool_format="native"))
    assert done.ending is Ending.POLICY_ERROR and "refuses the request (400" in done.detail


def test_words_without_a_call_in_the_text_format_are_malformed(serve: Any, episode: Any) -> None:
    server = serve({"fault": "endless_text"}, LS, DONE)
    done = episode(chat(server, tool_format="text", max_tokens=50))
    assert done.ending is Ending.FINISHED and done.trajectory.turns[0].malformed


def test_a_full_context_at_the_endpoint_ends_the_episode(serve: Any, episode: Any) -> None:
    big = {"text": "", "calls": [{"name": "Bash", "arguments": {"command": "seq 3000"}}]}
    server = serve(big, big, DONE, context_limit=3000)
    done = episode(chat(server))
    assert done.ending is Ending.CONTEXT_LIMIT and len(done.trajectory.turns) == 1
    assert "max_tokens" not in server.requests[-1], "the endpoint was first asked to choose the length"


def test_the_answer_fits_into_the_context_left(serve: Any, episode: Any) -> None:
    server = serve(LS, DONE)
    episode(chat(server), config=EpisodeConfig(max_context=9000))
    assert server.requests[0]["max_tokens"] == 9000 and server.requests[1]["max_tokens"] < 9000


def test_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="no address of an endpoint"):
        make_policy("chat:m", base_url="localhost:8000/v1")


def test_an_endpoint_that_is_down(episode: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    policy = make_policy("chat:m", base_url=f"http://127.0.0.1:{port}/v1", max_retries=1, backoff_s=0.01)
    done = episode(policy)
    assert (
        done.ending is Ending.POLICY_ERROR
        and "cannot be reached" in done.detail
        and "--base-url" in done.detail
    )


def test_the_time_limit_bounds_a_slow_endpoint(serve: Any, episode: Any) -> None:
    server = serve(*[{"fault": "slow", "value": 20}] * 3, DONE)
    started = time.monotonic()
    done = episode(chat(server, backoff_s=5.0), config=EpisodeConfig(time_limit_s=1.0))
    assert done.ending is Ending.TIME_LIMIT and time.monotonic() - started < 5


def test_a_wrong_key_is_not_retried(serve: Any, episode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(DONE, api_key="right")
    done = episode(chat(server))
    assert done.ending is Ending.POLICY_ERROR and "OPENAI_API_KEY" in done.detail and not server.requests
    monkeypatch.setenv("CUDA_AGENT_API_KEY", "right")
    assert episode(chat(server)).ending is Ending.FINISHED


def test_no_key_and_no_endpoint_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no API key"):
        make_policy("chat:gpt")


def test_a_proxy_of_the_environment_does_not_hide_a_local_endpoint(
    serve: Any, episode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert episode(chat(serve(DONE), max_retries=0)).ending is Ending.FINISHED


def test_half_an_emoji_does_no_harm(serve: Any, episode: Any, workspace: Path) -> None:
    command = {"name": "Bash", "arguments": {"command": "echo '\ud83d'; touch $'\\xff'"}}
    listing = {"name": "Glob", "arguments": {"pattern": "*"}}
    done = episode(chat(serve({"text": "half \ud83d", "calls": [command, listing]}, DONE)))
    assert done.ending is Ending.FINISHED
    first = done.trajectory.turns[0]
    assert [o.text for o in first.observations] == ["\\ud83d", "\\udcff"] and first.text == "half \\ud83d"


def test_resume_goes_on_at_the_right_answer(serve: Any, episode: Any) -> None:
    server = serve(LS, LS, DONE)
    first = episode(chat(server), config=EpisodeConfig(max_turns=1))
    second = episode(chat(server), history=first.trajectory.turns)
    assert second.ending is Ending.FINISHED and len(second.trajectory.turns) == 3


def answer(message: Any, finish: str = "stop", tools: Any = (), **more: Any) -> Any:
    data = {"choices": [{"message": message, "finish_reason": finish}], **more}
    return read_answer(data, tools, native=True, id_prefix="t", options=PolicyOptions())


def test_lenient_reading() -> None:
    call = {"function": {"name": "Bash", "arguments": {"command": "ls"}}}
    assert answer({"content": None, "tool_calls": [call]}).calls == (
        ToolCall("t_0", "Bash", {"command": "ls"}),
    )
    same = {"id": "x", **call}
    assert [c.id for c in answer({"tool_calls": [same, same]}).calls] == ["x", "t_1"], "ids made unique"
    assert answer({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}).text == "ab"
    assert answer({"content": "x", "reasoning": "why"}).text == "<think>\nwhy\n</think>\n\nx"
    assert answer({"tool_calls": [{"function": {"name": "Glob", "arguments": ""}}]}).calls[0].arguments == {}
    inline = "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
    assert answer({"content": inline}).calls[0].arguments == {"command": "ls"}, "an endpoint without a parser"
    for bad in (
        {"tool_calls": [7]},
        {"tool_calls": [{"function": {"name": "Bash", "arguments": "[1]"}}]},
        {},
    ):
        assert answer(bad).malformed and not answer(bad).calls
    assert "content filter" in answer({}, "content_filter").malformed[0]


@pytest.mark.parametrize(
    "data", [None, [], "x", {}, {"choices": None}, {"choices": [None]}, {"choices": [{"message": 1}]}]
)
def test_nonsense_is_told_apart(data: Any) -> None:
    with pytest.raises(NonsenseError):
        read_answer(data, (), native=True, id_prefix="t", options=PolicyOptions())


def test_usage_with_cache_and_reasoning() -> None:
    data = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 800},
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    options = PolicyOptions(prompt_price=1.0, completion_price=2.0, cached_price=0.1)
    assert read_usage(data, options) == (Usage(1000, 100, pytest.approx((200 + 80 + 200) / 1e6)), 1040)
    assert read_usage({**data, "cost": 0.5}, PolicyOptions())[0] == Usage(1000, 100, 0.5)
    for missing in (None, {}, {"prompt_tokens": None}, {"prompt_tokens": "many"}):
        assert read_usage(missing, options) == (None, None)


def test_reasoning_goes_back_only_on_demand() -> None:
    message = Message(Role.ASSISTANT, "<think>\nwhy\n</think>\n\nwords")
    assert native_messages([message], keep_reasoning=False) == [{"role": "assistant", "content": "words"}]
    assert native_messages([message], keep_reasoning=True)[0]["reasoning_content"] == "why"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "150", "retry-after": "9"}, 0.15),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers) == seconds


def test_the_server_as_a_program(tmp_path: Path, episode: Any) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{json.dumps(LS)}\n{json.dumps(DONE)}\n")
    command = [
        sys.executable,
        "-m",
        "cuda_agent.agent.recorded_server",
        str(path),
        "--port",
        "0",
        "--fault",
        "1:server_error:502",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            done = episode(make_policy("chat:recorded", base_url=url, backoff_s=0.01))
        finally:
            process.terminate()
    assert done.ending is Ending.FINISHED and len(done.trajectory.turns) == 2
    bad = subprocess.run(
        [*command[:-1], "1:nonsense"], capture_output=True, text=True, timeout=30, check=False
    )
    assert bad.returncode == 2 and "Faults: rate_limit" in bad.stderr and "Traceback" not in bad.stderr
