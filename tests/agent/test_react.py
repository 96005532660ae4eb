"""The loop: each ending by its name, everything made until then kept, and resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.messages import NO_ANSWER, RESUME_NOTE, ContextMeter, opening
from cuda_agent.agent.policies.replay import ReplayPolicy
from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role, ToolSpec
from cuda_agent.config import EpisodeConfig
from cuda_agent.errors import PolicyError
from cuda_agent.trajectory import Ending, Observation, ToolCall, Turn


def bash(command: str) -> dict[str, Any]:
    return {"text": f"I run {command}", "calls": [{"name": "Bash", "arguments": {"command": command}}]}


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., ReplayPolicy]:
    def write(*steps: dict[str, Any]) -> ReplayPolicy:
        path = tmp_path / "script.json"
        path.write_text(json.dumps(steps))
        return ReplayPolicy(path)

    return write


class Scripted:
    """A policy that calls a function for each action, and remembers what it saw."""

    name = "scripted"

    def __init__(self, act: Callable[[int], Action]) -> None:
        self._act = act
        self.seen: list[list[Message]] = []
        self.context: EpisodeContext | None = None
        self.history: Sequence[Message] = ()

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        self.context, self.history = context, history

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        self.seen.append(list(messages))
        return self._act(len(self.seen) - 1)

    def close(self) -> None:
        pass


def run_bash(number: int, command: str = "true") -> Action:
    return Action("go", (ToolCall(f"c{number}", "Bash", {"command": command}),))


def test_finished_with_linear_history(episode: Any) -> None:
    actions = [
        run_bash(0, "echo one"),
        Action("bad", malformed=("Not like this.",)),
        run_bash(2, "false"),
        Action("done"),
    ]
    policy = Scripted(lambda n: actions[n])
    done = episode(policy)
    assert (done.ending, done.detail) == (Ending.FINISHED, "")
    for earlier, later in zip(policy.seen, policy.seen[1:], strict=False):
        assert later[: len(earlier)] == earlier, "append-only"
    roles = [m.role for m in policy.seen[-1]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    turns = done.trajectory.turns
    assert [t.index for t in turns] == [0, 1, 2, 3] and turns[3].text == "done"
    assert turns[0].observations[0].text == "one" and turns[2].observations[0].is_error
    assert turns[1].malformed == ("Not like this.",) and turns[1].observations[0].text == "Not like this."


def test_turn_limit(episode: Any) -> None:
    done = episode(Scripted(run_bash), config=EpisodeConfig(max_turns=3))
    assert done.ending is Ending.TURN_LIMIT and len(done.trajectory.turns) == 3


def test_context_limit_by_the_policy_s_own_count(episode: Any) -> None:
    def act(number: int) -> Action:
        return Action("go", run_bash(number).calls, context_tokens=3000 * (number + 1))

    done = episode(Scripted(act), config=EpisodeConfig(max_context=10_000))
    # 9000 tokens after the third, and an eighth of the context is kept for an answer.
    assert done.ending is Ending.CONTEXT_LIMIT and len(done.trajectory.turns) == 3


def test_context_limit_by_estimate(episode: Any) -> None:
    done = episode(Scripted(lambda n: run_bash(n, "seq 2000")), config=EpisodeConfig(max_context=8000))
    assert done.ending is Ending.CONTEXT_LIMIT and 1 <= len(done.trajectory.turns) <= 3


def test_context_full_says_the_policy(episode: Any) -> None:
    done = episode(Scripted(lambda n: run_bash(n) if n == 0 else Action("", context_full=True)))
    assert done.ending is Ending.CONTEXT_LIMIT and len(done.trajectory.turns) == 1


def test_a_policy_without_a_context_never_fills_it(episode: Any) -> None:
    actions = [run_bash(n, "seq 5000") for n in range(8)] + [Action("done")]

    def act(number: int) -> Action:
        return Action(actions[number].text, actions[number].calls, context_tokens=0)

    assert episode(Scripted(act), config=EpisodeConfig(max_context=12_000)).ending is Ending.FINISHED


def test_time_limit_ends_a_command_and_skips_the_rest(episode: Any) -> None:
    calls = run_bash(0, "sleep 60").calls + run_bash(1, "touch never").calls
    started = time.monotonic()
    done = episode(Scripted(lambda n: Action("go", calls)), config=EpisodeConfig(time_limit_s=1.0))
    assert done.ending is Ending.TIME_LIMIT and time.monotonic() - started < 10
    slow, skipped = done.trajectory.turns[0].observations
    assert "timed out" in slow.text and "not run" in skipped.text


def test_a_policy_that_fails_because_time_is_up_is_a_time_limit(episode: Any) -> None:
    def act(number: int) -> Action:
        time.sleep(0.3)
        raise PolicyError("no time left")

    assert episode(Scripted(act), config=EpisodeConfig(time_limit_s=0.2)).ending is Ending.TIME_LIMIT


def test_format_errors_in_a_row(episode: Any) -> None:
    bad = [
        Action("", malformed=("x",)),
        Action("", (ToolCall("a", "Nope", {}),)),
        Action("", (ToolCall("b", "Bash", {}),)),
    ]

    def act(number: int) -> Action:
        return run_bash(number) if number == 2 else bad[number % 3]

    done = episode(Scripted(act), config=EpisodeConfig(max_format_errors=3))
    assert done.ending is Ending.FORMAT_ERRORS
    assert len(done.trajectory.turns) == 6, "a usable action begins the count anew"
    assert [len(t.malformed) for t in done.trajectory.turns] == [1, 1, 0, 1, 1, 1]


def test_policy_error(episode: Any) -> None:
    def act(number: int) -> Action:
        if number:
            raise PolicyError("the endpoint is down", "Start it.")
        return run_bash(number)

    done = episode(Scripted(act))
    assert done.ending is Ending.POLICY_ERROR and done.detail == "the endpoint is down. Start it."
    assert len(done.trajectory.turns) == 1


def test_sandbox_error_keeps_the_turn(episode: Any, workspace: Path) -> None:
    def act(number: int) -> Action:
        if number:
            shutil.rmtree(workspace)  # a sandboxed shell cannot remove the folder itself
        return run_bash(number, "exit")

    done = episode(Scripted(act))
    assert done.ending is Ending.SANDBOX_ERROR and "cannot start a shell" in done.detail
    assert not workspace.exists() and len(done.trajectory.turns) == 2
    assert done.trajectory.turns[1].observations[0].text == NO_ANSWER


def test_a_full_disk_is_a_sandbox_error(episode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda_agent.trajectory

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    def act(number: int) -> Action:
        monkeypatch.setattr(cuda_agent.trajectory.os, "fsync", full)
        return run_bash(number)

    done = episode(Scripted(act))
    assert done.ending is Ending.SANDBOX_ERROR and "Free disk space" in done.detail


def test_ctrl_c_in_a_command_keeps_what_was_made(episode: Any) -> None:
    calls = (*run_bash(0, "echo kept").calls, *run_bash(1, "sleep 60").calls, *run_bash(2, "touch x").calls)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    done = episode(Scripted(lambda n: Action("go", calls)))
    timer.join()
    assert done.ending is Ending.INTERRUPTED
    texts = [o.text for o in done.trajectory.turns[0].observations]
    assert texts == ["kept", NO_ANSWER, NO_ANSWER]


def test_ctrl_c_while_the_policy_thinks(episode: Any) -> None:
    def act(number: int) -> Action:
        if number:
            raise KeyboardInterrupt
        return run_bash(number)

    done = episode(Scripted(act))
    assert done.ending is Ending.INTERRUPTED and len(done.trajectory.turns) == 1


def test_a_defect_leaves_the_turns_and_no_ending(episode: Any, tmp_path: Path) -> None:
    from cuda_agent.trajectory import read_trajectory

    def act(number: int) -> Action:
        return run_bash(number) if number == 0 else Action("", (ToolCall("c", "Bash", None),))  # type: ignore[arg-type]

    policy = Scripted(act)
    policy.act = lambda messages, tools: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        episode(policy)
    assert read_trajectory(tmp_path / "trajectory.jsonl").ending is None


def test_turns_are_on_disk_before_the_next_starts(episode: Any, tmp_path: Path) -> None:
    counts: list[int] = []

    def on_turn(turn: Turn) -> None:
        counts.append(len((tmp_path / "trajectory.jsonl").read_text().splitlines()))

    episode(Scripted(lambda n: run_bash(n) if n < 2 else Action("done")), on_turn=on_turn)
    assert counts == [2, 3, 4]


def test_the_policy_learns_its_limits(episode: Any) -> None:
    policy = Scripted(lambda n: Action("done"))
    episode(policy, config=EpisodeConfig(max_context=5000, time_limit_s=60))
    assert policy.context and policy.context.max_context == 5000
    assert policy.context.deadline and 0 < policy.context.deadline - time.monotonic() < 60


def test_resume_rebuilds_the_history_and_says_the_shell_is_lost(
    episode: Any, script: Any, workspace: Path
) -> None:
    first = episode(script(bash("echo one > f; x=1"), bash("cat f")), config=EpisodeConfig(max_turns=2))
    assert first.ending is Ending.TURN_LIMIT
    policy = Scripted(lambda n: run_bash(n, "cat f; echo [$x]") if n == 0 else Action("done"))
    second = episode(policy, history=first.trajectory.turns)
    assert second.ending is Ending.FINISHED
    assert [m.role for m in policy.seen[0]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
    ]
    assert policy.seen[0][-1].content == RESUME_NOTE and list(policy.history) == policy.seen[0]
    assert [t.index for t in second.trajectory.turns] == [0, 1, 2, 3]
    assert second.trajectory.turns[:2] == first.trajectory.turns


def test_earlier_turns_count_against_the_limit(episode: Any, script: Any) -> None:
    first = episode(script(bash("true"), bash("true")), config=EpisodeConfig(max_turns=2))
    second = episode(Scripted(run_bash), history=first.trajectory.turns, config=EpisodeConfig(max_turns=3))
    assert second.ending is Ending.TURN_LIMIT and len(second.trajectory.turns) == 3


def test_a_turn_that_died_half_way_gets_its_missing_answers() -> None:
    calls = (ToolCall("a", "Bash", {}), ToolCall("b", "Bash", {}))
    turn = Turn(0, "t", calls, (Observation("a", "one"),))
    assert [(m.role, m.content) for m in opening("S", "P", [turn])[3:5]] == [
        ("tool", "one"),
        ("tool", NO_ANSWER),
    ]


def test_the_meter_learns_characters_per_token() -> None:
    meter = ContextMeter([])
    messages = [Message(Role.USER, "x" * 3000)]
    assert meter.tokens(messages) == pytest.approx(1000, rel=0.02)
    messages.append(Message(Role.ASSISTANT, "y" * 3000))
    meter.report(Action("", context_tokens=3000), messages)
    messages.append(Message(Role.TOOL, "z" * 600))
    assert meter.tokens(messages) == pytest.approx(3300, rel=0.02)


def test_replay_of_a_trajectory_does_the_same_again(
    episode: Any, script: Any, tmp_path: Path, workspace: Path
) -> None:
    first = episode(script(bash("echo a >> log"), bash("wc -l < log"), {"text": "done"}))
    recorded = tmp_path / "recorded.jsonl"
    shutil.copy(tmp_path / "trajectory.jsonl", recorded)
    (workspace / "log").unlink()
    again = episode(ReplayPolicy(recorded))
    assert again.ending is Ending.FINISHED
    assert [t.observations[0].text for t in again.trajectory.turns[:2]] == [
        t.observations[0].text for t in first.trajectory.turns[:2]
    ]
