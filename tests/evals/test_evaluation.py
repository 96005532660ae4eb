"""Evaluations with real kernels: killed and resumed; best and last version; one answer without tools."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import handwritten as hand
import pytest

from cuda_agent.errors import UsageError
from cuda_agent.evals.evaluation import create_evaluation, sole_user
from cuda_agent.evals.metrics_records import Verdict
from cuda_agent.evals.run_files import EvalFolder, EvalSettings
from cuda_agent.evals.task_facts import add_baselines, judge_config
from cuda_agent.judge.baseline_lines import LineTimes
from cuda_agent.judge.baseline_names import Line
from cuda_agent.tasks.taskset import open_taskset
from cuda_agent.trajectory import read_trajectory

WAIT = hand.bash("test -e go || sleep 600")
ACTIONS = [
    *hand.writes(),
    hand.VERIFY,
    WAIT,
    *hand.writes(hand.WRONG_KERNEL)[:1],
    {"text": "Done.", "calls": []},
]


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


def attempt_processes(root: Path) -> list[int]:
    """Processes at work on an evaluation's attempts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cuda_agent.evals.attempt_process" in words and str(root).encode() in words:
            found.append(int(path.parent.name))
    return found


def num_turns(path: Path) -> int:
    return path.read_text().count('"type": "turn"') if path.exists() else 0


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_without_loss(command, tmp_path):
    """kill -9 inside an attempt; resumed, no turn is made twice; a finished attempt is not made again."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "gated.py").write_text(hand.TASK)
    script = hand.recording(tmp_path / "script.json", ACTIONS)
    argv = ("eval", "set", "--policy", f"replay:{script.name}", "--device", "cpu", "--out", "out")
    process = command.start(*argv, "--no-admission")
    root = tmp_path / "out"
    run = root / "attempts" / "gated" / "0"
    wait_for(lambda: num_turns(run / "trajectory.jsonl") == 4)
    wait_for(lambda: attempt_processes(root))
    process.kill()
    process.communicate()
    wait_for(lambda: not attempt_processes(root), 30)
    assert EvalFolder.open(root).attempts() == ()

    (run / "workspace" / "go").touch()
    _, err = command("eval", "--resume", "--out", "out", "--no-admission")
    assert "pass 1/1 (100%)" in err
    [attempt] = EvalFolder.open(root).attempts()
    assert attempt.verdict() is Verdict.CORRECT and attempt.best.reward in (1, 2, 3)
    assert (attempt.last.correct, attempt.last.reward, attempt.last.stage) == (False, -1, "verify")
    assert attempt.best.candidate_hash != attempt.last.candidate_hash
    assert (attempt.ending, attempt.turns) == ("finished", len(ACTIONS))
    texts = [turn.text for turn in read_trajectory(run / "trajectory.jsonl").turns]
    assert len(texts) == len(ACTIONS) and texts[-1] == "Done."
    assert attempt.judged["full"] == 1 and attempt.judged["verify"] >= 2
    before = (root / "attempts.jsonl").read_bytes()
    command("eval", "--resume", "--out", "out", "--no-admission")
    assert (root / "attempts.jsonl").read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_keeps_what_there_is_and_resume_needs_no_source(command, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "gated.py").write_text(hand.TASK)
    script = hand.recording(tmp_path / "script.json", [WAIT, {"text": "Nothing.", "calls": []}])
    argv = ("eval", "set", "--policy", f"replay:{script.name}", "--device", "cpu", "--out", "out")
    process = command.start(*argv, "--no-admission")
    root = tmp_path / "out"
    workspace = root / "attempts" / "gated" / "0" / "workspace"
    wait_for(
        lambda: (workspace / "SKILL.md").exists() and num_turns(workspace.parent / "trajectory.jsonl") == 0
    )
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err and not attempt_processes(root)
    assert EvalFolder.open(root).attempts() == ()
    (workspace / "go").touch()
    (tmp_path / "set" / "gated.py").unlink()
    _, err = command("eval", "--resume", "--out", "out", "--no-admission")
    [attempt] = EvalFolder.open(root).attempts()
    assert attempt.verdict() is Verdict.NO_CANDIDATE
    assert attempt.words == "Nothing."


@pytest.mark.slow
def test_one_answer_without_tools_is_built_and_judged(command, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "gated.py").write_text(hand.TASK)
    blocks = {
        "model_new.py": hand.MODEL_NEW,
        "kernels/gated.cpp": hand.KERNEL,
        "kernels/gated_binding.cpp": hand.BINDING,
    }
    answer = "\n\n".join(f"`{name}`\n\n```\n{text}```" for name, text in blocks.items())
    script = hand.recording(tmp_path / "script.json", [{"text": answer, "calls": []}])
    argv = ("eval", "set", "--single-turn", "--policy", f"replay:{script.name}", "--device", "cpu")
    command(*argv, "--out", "out", "--no-admission")
    folder = EvalFolder.open(tmp_path / "out")
    [attempt] = folder.attempts()
    assert attempt.verdict() is Verdict.CORRECT and attempt.last == attempt.best
    assert (attempt.turns, attempt.judge_calls, attempt.judged) == (1, 1, {"full": 1})
    run = folder.attempt_folder("gated", 0)
    assert (run / "candidate" / "kernels" / "gated.cpp").read_text() == hand.KERNEL
    assert "# SKILL.md" in read_trajectory(run / "trajectory.jsonl").header.prompt
    assert folder.settings().arm == "single_turn"


def test_baselines_of_the_cache_are_taken_over_once(tiny_set, tmp_path, monkeypatch):
    from cuda_agent.evals.baseline_rows import set_cache

    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    versions = {"torch": "1"}
    settings = EvalSettings("set", "hash", "playbook", device_name="CPU", versions=versions)
    folder = create_evaluation(tmp_path / "out", open_taskset(str(tiny_set)), settings)
    cache = set_cache(judge_config(settings), name="CPU", versions=versions)
    first, second = folder.tasks()
    cache.add(first.task_hash, {Line.EAGER: LineTimes(samples=((2.0,),), weights=(1.0,))})
    size = folder.tasks_path.stat().st_size
    for _ in range(2):
        add_baselines(folder)
        tasks = folder.tasks()
        assert [t.baseline_us("eager") for t in tasks] == [2.0, None]
        assert tasks[1] == second
        assert folder.tasks_path.read_text().count("\n") == 3
    assert folder.tasks_path.stat().st_size > size


def test_two_evaluations_do_not_share_a_folder(tiny_set, tmp_path):
    settings = EvalSettings("set", "hash", "playbook")
    folder = create_evaluation(tmp_path / "out", open_taskset(str(tiny_set)), settings)
    with sole_user(folder), pytest.raises(UsageError, match="another process works"), sole_user(folder):
        pass
    with sole_user(folder):
        assert json.loads((folder.root / "eval.json").read_text())["policy"] == "playbook"
    assert folder.load_task("level1/1").name == "1_Add"
