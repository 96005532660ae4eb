"""The main job with real processes: a recorded policy writes kernels by hand, everything after it is real."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import handwritten as hand
import pytest
import torch

import cuda_agent
from cuda_agent.result import Result
from cuda_agent.trajectory import Ending, read_trajectory

pytestmark = pytest.mark.slow

ACTIONS = [
    *hand.writes(hand.WRONG_KERNEL),
    hand.COMPILE,
    hand.VERIFY,
    *hand.writes(),
    hand.COMPILE,
    hand.VERIFY,
    hand.PROFILE,
    {"text": "All done.", "calls": []},
]


def start(folder, *argv, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "cuda_agent", *argv],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(folder, *argv, code=0):
    process = start(folder, *argv)
    out, err = process.communicate(timeout=500)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder it ran in, stdout, stderr) of one whole run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "gated.py").write_text(hand.TASK)
    hand.recording(folder / "script.json", ACTIONS)
    argv = ("optimize", "gated.py", "--policy", "replay:script.json", "--device", "cpu", "--out", "out")
    return folder, *run(folder, *argv)


def test_the_run_ends_verified_with_everything_on_disk(finished):
    folder, out, err = finished
    root = folder / "out"
    result = Result.from_dict(json.loads((root / "result.json").read_text()))
    assert result.correct and result.reward in (1, 2, 3)
    assert result.reference == "task"
    assert result.inputs == (("float32[512,384]", "float32[512,384]"),)
    for words in ("verified", "eager", "torch.compile", "candidate", str(root / "candidate"), "summary.md"):
        assert words in out
    assert "turn 5: Bash" in err and "[PASS] check 5/5" in err
    trajectory = read_trajectory(root / "trajectory.jsonl")
    assert trajectory.ending is Ending.FINISHED
    assert len(trajectory.turns) == len(ACTIONS)
    texts = [o.text for turn in trajectory.turns for o in turn.observations]
    assert any("[FAIL]" in text for text in texts)
    assert any("[PASS] verify success" in text for text in texts)
    assert any("CUDA Extension:" in text for text in texts)
    assert "b[i] *" in (root / "candidate" / "kernels" / "gated.cpp").read_text()
    assert len([p for p in (root / "snapshots").iterdir() if p.is_dir()]) == 2
    assert "All done." in (root / "summary.md").read_text()
    assert json.loads((root / "settings.json").read_text())["judge"]["device"] == "cpu"


def test_the_loaded_result_matches_eager_on_fresh_inputs(finished):
    folder, _, _ = finished
    module = cuda_agent.load(folder / "out")
    assert not module.training
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            x, gate = torch.randn(512, 384), torch.randn(512, 384)
            torch.testing.assert_close(module(x, gate), module.original(x, gate))
        module.load_state_dict({"gain": torch.full((384,), 2.0)})
        torch.testing.assert_close(module(x, gate), x * torch.sigmoid(x) * gate * 2.0)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="not verified"):
        module(torch.randn(3, 384), torch.randn(3, 384))


def test_two_results_live_in_one_process(finished, tmp_path):
    folder, _, _ = finished
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", folder / "out", other], check=True)
    path = other / "candidate" / "kernels" / "gated.cpp"
    path.write_text(path.read_text().replace("* gain[i]", "* gain[i] * 3.f"))
    with pytest.raises(cuda_agent.UsageError, match="changed after it was judged"):
        cuda_agent.load(other)
    first, second = cuda_agent.load(folder / "out"), cuda_agent.load(other, allow_unverified=True)
    second.load_state_dict(first.state_dict())
    x, gate = torch.randn(512, 384), torch.randn(512, 384)
    with torch.no_grad():
        torch.testing.assert_close(second(x, gate), 3 * first(x, gate))


def test_the_exported_package_installs_and_runs_without_cuda_agent(finished, tmp_path):
    folder, _, _ = finished
    package = tmp_path / "package"
    run(folder, "export", "out", "--out", str(package), "--name", "fast_gated")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(package)], check=True, capture_output=True)
    code = (
        "import sys, warnings, torch, fast_gated\n"
        "warnings.simplefilter('error')\n"
        "m = fast_gated.load()\n"
        "x, g = torch.randn(512, 384), torch.randn(512, 384)\n"
        "with torch.no_grad():\n"
        "    assert m.why_not(x, g) is None\n"
        "    torch.testing.assert_close(m(x, g), m.original(x, g))\n"
        "assert not [n for n in sys.modules if n.startswith('cuda_agent')]\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env["PYTHONSAFEPATH"] = "1"
    for _ in range(2):  # the second finds the built library
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "cache" / "fast_gated").iterdir())) == 1
    _, err = run(folder, "export", "out", "--out", str(package), code=2)
    assert "is not empty" in err


def test_judge_prints_one_object_and_exits_0_whatever_the_verdict(finished, tmp_path):
    folder, _, _ = finished
    run(folder, "new", "gated.py", str(tmp_path / "w"), "--device", "cpu")
    hand.write_files(tmp_path / "w", kernel=hand.WRONG_KERNEL)
    out, err = run(folder, "judge", str(tmp_path / "w"), "--task", "gated.py", "--device", "cpu", "--json")
    data = json.loads(out)
    assert out.count("\n") == 1
    assert (data["stage"], data["correct"], data["reward"]) == ("verify", False, -1)
    assert data["candidate_us"] is None and data["reference"] == "task"
    assert "check 1/5" in err


def test_explain_shows_where_a_candidate_is_wrong(finished, tmp_path):
    folder, _, _ = finished
    run(folder, "new", "gated.py", str(tmp_path / "w"), "--device", "cpu")
    hand.write_files(tmp_path / "w", kernel=hand.WRONG_KERNEL)
    out, _ = run(folder, "explain", str(tmp_path / "w"))
    assert "columns 1-383 in steps of 2" in out
    assert "map, 512 rows by 384 columns" in out
    saved = torch.load(tmp_path / "w" / ".cuda_agent" / "failure.pt", weights_only=True)
    assert [tuple(t.shape) for t in saved["inputs"]] == [(512, 384), (512, 384)]
    hand.write_files(tmp_path / "w", kernel=hand.BROKEN_KERNEL)
    out, _ = run(folder, "explain", str(tmp_path / "w"))
    assert "kernels/gated.cpp:" in out and "undeclared" in out


def test_explain_measures_a_good_one_against_the_floor(finished):
    folder, _, _ = finished
    out, _ = run(folder, "explain", "out")
    assert "recorded verdict: verified" in out
    assert "1,574,400 read" in out and "786,432 written" in out
    assert "floor at the measured peak" in out


def test_compare_tells_a_slow_candidate_from_a_fast_one(finished, tmp_path):
    folder, _, _ = finished
    run(folder, "new", "gated.py", str(tmp_path / "slow"), "--device", "cpu")
    loop = "    for (int64_t row = 0; row < rows; ++row) {"
    repeat = "    for (int64_t again = 0; again < 20; ++again) {" + "\n" + loop
    slow = hand.KERNEL.replace("#pragma omp parallel for schedule(static)\n" + loop, repeat)
    slow = slow.replace("        }\n    }\n}", '        }\n        asm volatile("" ::: "memory");\n    }}\n}')
    hand.write_files(tmp_path / "slow", kernel=slow)
    out, _ = run(folder, "compare", str(tmp_path / "slow"), "out", "--json")
    report = json.loads(out)
    assert report["interval"][0] > 2.0, report["conclusion"]
    assert report["interval"][0] <= report["ratio"] <= report["interval"][1]
    assert report["conclusion"].startswith("B is faster")
    (folder / "other.py").write_text(hand.TASK.replace("* gate", "* gate * 2"))
    run(folder, "new", "other.py", str(tmp_path / "other"), "--device", "cpu")
    _, err = run(folder, "compare", str(tmp_path / "other"), "out", code=2)
    assert "different tasks" in err


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


def num_turns(path: Path) -> int:
    return path.read_text().count('"type": "turn"') if path.exists() else 0


def test_ctrl_c_keeps_the_best_and_resume_goes_on(finished, tmp_path):
    """A verified version, then a long command interrupted: the version is judged. Then --resume."""
    (tmp_path / "gated.py").write_text(hand.TASK)
    script = [*hand.writes(), hand.VERIFY, hand.bash("sleep 600"), {"text": "The end.", "calls": []}]
    hand.recording(tmp_path / "script.json", script)
    argv = ("optimize", "gated.py", "--policy", "replay:script.json", "--device", "cpu", "--out", "out")
    process = start(tmp_path, *argv)
    wait_for(lambda: num_turns(tmp_path / "out" / "trajectory.jsonl") == 4)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["correct"] is True, err
    assert read_trajectory(tmp_path / "out" / "trajectory.jsonl").ending is Ending.INTERRUPTED
    assert "verified" in out
    out, err = run(tmp_path, "optimize", "--resume", "--out", "out")
    assert "the shell's state is lost" in err
    trajectory = read_trajectory(tmp_path / "out" / "trajectory.jsonl")
    assert trajectory.ending is Ending.FINISHED
    assert trajectory.turns[-1].text == "The end."


def test_a_killed_run_resumes_and_a_second_ctrl_c_stops_at_once(finished, tmp_path):
    (tmp_path / "gated.py").write_text(hand.TASK)
    script = [*hand.writes(), hand.VERIFY, hand.bash("sleep 600"), hand.bash("sleep 600")]
    hand.recording(tmp_path / "script.json", script)
    argv = ("optimize", "gated.py", "--policy", "replay:script.json", "--device", "cpu", "--out", "out")
    process = start(tmp_path, *argv)
    trajectory = tmp_path / "out" / "trajectory.jsonl"
    wait_for(lambda: num_turns(trajectory) == 4)
    process.kill()
    process.communicate()
    with trajectory.open("a") as file:
        file.write('{"type": "turn", "cut off by the k')
    process = start(tmp_path, "optimize", "--resume", "--out", "out")
    time.sleep(25)  # until it sleeps in the shell, on a busy machine too
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "out" / "candidate").exists, 60)
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < 30:
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert time.monotonic() - begun < 30
    assert (tmp_path / "out" / "candidate" / "kernels" / "gated.cpp").is_file()
    assert (tmp_path / "out" / "summary.md").is_file()
    assert read_trajectory(trajectory).ending in (Ending.INTERRUPTED, None)


def test_a_policy_that_writes_nothing_ends_with_a_reason(tmp_path):
    (tmp_path / "gated.py").write_text(hand.TASK)
    hand.recording(tmp_path / "script.json", [{"text": "I refuse: no template fits.", "calls": []}])
    argv = ("optimize", "gated.py", "--policy", "replay:script.json", "--device", "cpu", "--out", "out")
    out, _ = run(tmp_path, *argv, code=3)
    assert "no candidate" in out and "no template fits" in out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["correct"], result["reward"]) == (False, -1)


def test_an_endpoint_that_is_down_is_no_verdict(tmp_path):
    (tmp_path / "gated.py").write_text(hand.TASK)
    env = {**os.environ, "OPENAI_API_KEY": "unused"}
    argv = ["optimize", "gated.py", "--policy", "chat:m", "--base-url", "http://127.0.0.1:9/v1"]
    process = start(tmp_path, *argv, "--device", "cpu", "--out", "out", "--max-retries", "1", env=env)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    lines = [line for line in err.splitlines() if line.startswith("cuda-agent:")]
    assert len(lines) == 1 and "cannot be reached" in lines[0]
    assert not (tmp_path / "out" / "result.json").exists()
    assert "not judged" in out
    assert read_trajectory(tmp_path / "out" / "trajectory.jsonl").ending is Ending.POLICY_ERROR
