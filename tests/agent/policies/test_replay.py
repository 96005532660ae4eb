"""Replay and the recorded endpoint's files: what is read, what is refused, and by what words."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.policies import make_policy
from cuda_agent.agent.policy import EpisodeContext, Message, Role
from cuda_agent.agent.recorded_server import RecordedServer
from cuda_agent.agent.recording import Fault, FaultKind, load_recording
from cuda_agent.errors import UsageError
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, ToolCall, TrajectoryWriter, Turn


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "recorded.jsonl"
    writer = TrajectoryWriter(path, Header("somewhere", "chat:m", "cpu", "matched", "S", "P"))
    writer.turn(Turn(0, "look", (ToolCall("same", "Bash", {"command": "ls"}),)))
    writer.turn(Turn(1, "again", (ToolCall("same", "Glob", {"pattern": "*"}),), malformed=("bad",)))
    writer.end(Ending.TURN_LIMIT)
    return path


def context(workspace: Path) -> EpisodeContext:
    return EpisodeContext(workspace, Task("x"), "cpu")


def test_a_trajectory_of_another_task_is_played_with_a_warning(
    recorded: Path, caplog: Any, workspace: Path
) -> None:
    policy = make_policy(f"replay:{recorded}")
    with caplog.at_level(logging.WARNING):
        policy.start(context(workspace))
    assert "recorded on task somewhere" in caplog.text
    actions = [policy.act([], []) for _ in range(3)]
    assert [[c.name for c in a.calls] for a in actions] == [["Bash"], ["Glob"], []]
    assert len({call.id for action in actions for call in action.calls}) == 2, "ids are made unique"
    assert actions[1].malformed == ("bad",) and "ends here" in actions[2].text
    policy.close()


def test_replay_resumes_after_what_the_history_holds(recorded: Path, workspace: Path) -> None:
    policy = make_policy(f"replay:{recorded}")
    policy.start(context(workspace), [Message(Role.USER, "u"), Message(Role.ASSISTANT, "look")])
    assert policy.act([], []).text == "again"


def test_a_recording_cut_off_by_a_kill(recorded: Path, workspace: Path) -> None:
    text = recorded.read_text().splitlines()
    recorded.write_text("\n".join([*text[:2], text[2][:40]]))
    policy = make_policy(f"replay:{recorded}")
    assert [bool(policy.act([], []).calls) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither a trajectory nor a script"),
        ("[]", "neither"),
        ("[1]", "neither"),
        ("hello", "neither"),
        ('{"text": "a"}\nhello\n{"text": "b"}', "line 2 is not JSON"),
        ('[{"text": 1}]', "not an action"),
        ('[{"calls": [{"arguments": {}}]}]', "not an action"),
        ('[{"text": "a"', "is not JSON"),
    ],
)
def test_bad_scripts_are_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "script"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        make_policy(f"replay:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("oracle", {}, "no policy 'oracle'"),
        ("chat:", {}, "no policy 'chat:'"),
        ("replay:/nowhere", {}, "cannot read /nowhere"),
        ("replay:x", {"base_url": "http://x"}, "has no endpoint"),
        ("chat:m", {"tempo": 1}, "unknown policy option among tempo"),
        ("chat:m", {"tool_format": "yaml"}, "auto, native, text"),
        ("chat:m", {"temperature": -1.0}, "temperature"),
        ("local:m", {"top_p": 0.0}, "top-p"),
        ("chat:m", {"max_tokens": 0}, "above 0"),
    ],
)
def test_bad_policies_are_usage_errors(spec: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_policy(spec, **options)


def ask(server: RecordedServer, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = json.dumps({"model": "m", "messages": messages, "tools": [{}], **more}).encode()
    with urllib.request.urlopen(f"{server.url}/chat/completions", body, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


USER = {"role": "user", "content": "u"}


def test_the_server_plays_a_trajectory_to_many_at_once(recorded: Path) -> None:
    done = []
    with RecordedServer(load_recording(recorded)) as server:

        def play() -> None:
            first = ask(server, [USER])["choices"][0]["message"]
            tool = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "r"}
            second = ask(server, [USER, first, tool])["choices"][0]["message"]
            done.append([m["tool_calls"][0]["function"]["name"] for m in (first, second)])

        threads = [threading.Thread(target=play) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert done == [["Bash", "Glob"]] * 8


def test_faults_on_top_of_a_recording_happen_once(recorded: Path) -> None:
    faults = [(0, Fault(FaultKind.SERVER_ERROR, 503)), (1, Fault(FaultKind.UNKNOWN_TOOL))]
    with RecordedServer(load_recording(recorded, faults)) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, [USER])
        assert caught.value.code == 503
        first = ask(server, [USER])["choices"][0]["message"]
        tool = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "r"}
        second = ask(server, [USER, first, tool])["choices"][0]["message"]
        assert second["tool_calls"][0]["function"]["name"] == "WebSearch"


@pytest.mark.parametrize(
    ("messages", "more", "words"),
    [
        ([], {}, "messages must be"),
        ([USER], {"stream": True}, "does not stream"),
        ([USER, {"role": "tool", "tool_call_id": "x", "content": ""}], {}, "answers no call"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}, USER], {}, "without an answer"),
    ],
)
def test_the_server_refuses_what_a_real_one_refuses(
    recorded: Path, messages: Any, more: Any, words: str
) -> None:
    with RecordedServer(load_recording(recorded)) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, messages, **more)
        assert caught.value.code == 400 and words in json.load(caught.value)["error"]["message"]


def test_models_and_health_and_a_taken_port(recorded: Path) -> None:
    with RecordedServer(load_recording(recorded), model="tiny") as server:
        with urllib.request.urlopen(f"{server.url}/models", timeout=10) as response:
            assert json.load(response)["data"][0]["id"] == "tiny"
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(UsageError, match="cannot listen"):
            RecordedServer(load_recording(recorded), port=port)
    server.close()


def test_the_loop_and_its_tools_do_not_import_torch_or_openai() -> None:
    code = (
        "import sys, cuda_agent.agent.react, cuda_agent.agent.policies, cuda_agent.agent.recorded_server\n"
        "print(sorted({'torch', 'openai', 'transformers', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
