"""``cuda-agent eval`` with a chat policy against a real endpoint: sums, faults of our own side, resuming."""

from __future__ import annotations

import json

import pytest

from cuda_agent.agent.recorded_server import RecordedServer
from cuda_agent.agent.recording import completion, load_recording
from cuda_agent.evals.metrics_records import Verdict
from cuda_agent.evals.run_files import EvalFolder

ANSWERS = [
    {"text": "I look first.", "calls": [{"name": "Bash", "arguments": {"command": "ls"}}]},
    {"text": "I stop here.", "calls": []},
]
LOST = {"fault": "server_error"}


@pytest.fixture
def endpoint(tmp_path):
    """Plays the answers for any number of episodes; the first request of all fails."""
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([LOST, *ANSWERS]))
    with RecordedServer(load_recording(path)) as server:
        yield server


def expected_tokens(endpoint):
    """What the endpoint has charged for requests that it answered: (prompt, completion)."""
    usages = []
    for body in endpoint.requests[1:]:
        number = sum(message["role"] == "assistant" for message in body["messages"])
        usages.append(completion(endpoint.recording.answers[number], body, model="m")["usage"])
    return sum(u["prompt_tokens"] for u in usages), sum(u["completion_tokens"] for u in usages)


def test_tokens_and_costs_are_summed_and_a_lost_attempt_is_made_again(command, tiny_set, endpoint):
    argv = ["eval", str(tiny_set), "--policy", "chat:m", "--base-url", endpoint.url, "--device", "cpu"]
    argv += [
        "--out",
        "out",
        "--jobs",
        "2",
        "--max-retries",
        "0",
        "--prompt-price",
        "2",
        "--completion-price",
        "10",
    ]
    out, err = command(*argv, "--no-admission", code=1)
    assert "1 attempts were lost by our own side" in err and "--resume" in err
    folder = EvalFolder.open(command.folder / "out")
    by_loss = {bool(a.infrastructure): a for a in folder.attempts()}
    assert len(by_loss) == 2
    lost, kept = by_loss[True], by_loss[False]
    assert lost.ending == "policy_error" and "answers 500" in lost.infrastructure
    assert (kept.ending, kept.turns, kept.verdict()) == ("finished", 2, Verdict.NO_CANDIDATE)
    assert kept.words == "I stop here."
    assert kept.best.reward == -1 and kept.best.correct is False
    assert len(endpoint.requests) == 3

    out, err = command("eval", "--resume", "--out", "out", "--no-admission")
    assert "infrastructure" in out and "pass 0/2" in err
    assert len(endpoint.requests) == 5, "the finished attempt is not made again"
    attempts = folder.attempts()
    assert {(a.id, a.ending, a.infrastructure) for a in attempts} == {
        ("level1/1", "finished", None),
        ("level1/2", "finished", None),
    }
    prompt, answered = expected_tokens(endpoint)
    assert sum(a.prompt_tokens for a in attempts) == prompt
    assert sum(a.completion_tokens for a in attempts) == answered
    cost = sum(a.cost_usd for a in attempts)
    assert cost == pytest.approx((2 * prompt + 10 * answered) / 1e6)
    settings = folder.settings()
    assert (settings.policy, settings.samples, settings.price_in) == ("chat:m", 1, 2.0)
    assert settings.device == "cpu" and settings.device_name and settings.versions["torch"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--policy", "playbook"], "no folder for the evaluation"),
        (["--policy", "nonsense", "--out", "out"], "there is no policy"),
        (["--ids", "level9/1", "--out", "out"], "no task has the id"),
        (["--levels", "x", "--out", "out"], "names no levels"),
        (["--resume", "--out", "out"], "no run of cuda-agent eval"),
    ],
)
def test_bad_options_are_one_line_and_leave_no_folder(command, tiny_set, capsys, argv, words):
    from cuda_agent.cli.main import run

    argv = [str(command.folder / a) if a == "out" else a for a in argv]
    assert run(["eval", str(tiny_set), "--device", "cpu", *argv]) == 2
    assert words in capsys.readouterr().err
    assert not (command.folder / "out").exists()
