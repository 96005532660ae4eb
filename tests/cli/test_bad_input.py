"""Bad input ends in one clear line with a remedy, never in a traceback, and leaves nothing half made."""

import os
import signal
import subprocess
import sys

import pytest

from cuda_agent.cli import main
from cuda_agent.config import Device, JudgeConfig
from cuda_agent.errors import TaskError
from cuda_agent.judge.task_check import check_task
from cuda_agent.task import Task

GOOD = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""


def run(*argv, cwd, env=None, timeout=120):
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cuda_agent", *argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def one_line(done, code):
    """stderr is progress, and then exactly one line of ours; no traceback anywhere."""
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("cuda-agent:")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import torch", "import no_such_package_xyz\nimport torch", "No module named 'no_such_package_xyz'"),
        ("return x * 2", "return 'text'", "no tensor"),
        ("return x * 2", "return x, object()", "type object"),
        ("return x * 2", "return x * torch.rand_like(x)", "random numbers in eval mode"),
        ("return x * 2", "raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("torch.randn(4, 8)", "torch.randn(10**7, 10**7)", "too large"),
        ("(nn.Module)", "", "not an nn.Module"),
        ("return x * 2", "import os; os.abort()", "SIGABRT"),
        ("return x * 2", "return x.to_sparse()", "layout torch.sparse_coo"),
        ("return x * 2", "return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)", "quantized"),
        ("return x * 2", "a = [x]; a.append(a); return a", "holds itself"),
        ("return x * 2", "return x[:0]", "without elements"),
        ("return x * 2", "raise KeyboardInterrupt", "it printed: KeyboardInterrupt."),
        ("return [torch.randn(4, 8)]", "return {'x': torch.randn(4, 8)}", "returned a dict"),
        ("return [torch.randn(4, 8)]", "return None", "returned a NoneType"),
        ("def forward(self, x)", "def forward(self, x, *, scale)", "missing 1 required keyword-only"),
    ],
)
def test_references_that_cannot_be_judged(old, new, words):
    code = GOOD.replace(old, new, 1)
    assert code != GOOD
    with pytest.raises(TaskError) as caught:
        check_task(Task(code=code, name="bad"), JudgeConfig(device=Device.CPU))
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "bad" in caught.value.cause
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_good_reference_passes_and_says_its_inputs():
    assert check_task(Task(code=GOOD), JudgeConfig(device=Device.CPU)) == (("float32[4,8]",),)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["optimize"], "no target"),
        (["optimize", "--nope"], "No such option"),
        (["frobnicate"], "No such command"),
        (["optimize", "nofile.py"], "there is no file nofile.py"),
        (["optimize", "good.py", "--policy", "frob"], "there is no policy 'frob'"),
        (["optimize", "good.py", "--policy", "replay:nofile"], "cannot read nofile"),
        (["optimize", "good.py", "--policy", "playbook", "--base-url", "http://x"], "no endpoint"),
        (["optimize", "good.py", "--track", "paper", "--precision", "tf32"], "track paper"),
        (["optimize", "good.py", "--track", "mine"], "'mine' is not one of"),
        (["optimize", "good.py", "--max-turns", "0"], "--max-turns"),
        (["optimize", "good.py", "--time-limit", "-1"], "time-limit must be above 0"),
        (["optimize", "good.py", "--out", "taken"], "taken is not empty"),
        (["optimize", "good.py", "--out", "taken/file/new"], "taken/file is not a folder"),
        (["optimize", "good.py", "--out", "x" * 300], "File name too long"),
        (["optimize", "--resume", "--out", "taken"], "no run of cuda-agent optimize"),
        (["optimize", "--resume"], "--resume does not know which run"),
        (["export", "taken"], "no run of cuda-agent optimize"),
        (["demo", "nothing"], "there is no example 'nothing'"),
    ],
)
def test_bad_usage_is_exit_code_2_and_one_line(argv, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main.run(argv) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("cuda-agent: ") and err.count("\n") == 1
    assert out == ""
    assert not (tmp_path / "cuda-agent-out").exists()


def test_bad_usage_in_a_process_of_its_own(tmp_path):
    done = run("optimize", "nofile.py", cwd=tmp_path)
    assert "there is no file nofile.py" in one_line(done, 2)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["judge", "nofolder"], "nofolder is not a folder"),
        (["judge", "bare"], "no model_new.py"),
        (["judge", "half"], "no readable model.py"),
        (["explain", "nofolder"], "no workspace at nofolder"),
        (["compare", "half", "nofolder"], "no readable model.py"),
    ],
)
def test_bad_workspaces_name_what_is_missing(argv, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.py").write_text(GOOD)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "model_new.py").write_text("class ModelNew: pass\n")
    monkeypatch.chdir(tmp_path)
    assert main.run(argv) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("cuda-agent: ") and err.count("\n") == 1
    assert out == ""


def test_a_refused_task_leaves_no_folder(tmp_path):
    (tmp_path / "task.py").write_text(GOOD.replace("return x * 2", "return torch.rand_like(x)"))
    done = run("optimize", "task.py", "--device", "cpu", cwd=tmp_path)
    assert "random" in one_line(done, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]


def test_a_missing_compiler_says_what_to_install(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    done = run("optimize", "good.py", cwd=tmp_path, env={"PATH": "/nonexistent", "CXX": ""})
    assert "apt-get install -y g++" in one_line(done, 1)


def test_ctrl_c_before_anything_is_made_is_one_line(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    process = subprocess.Popen(
        [sys.executable, "-m", "cuda_agent", "optimize", "good.py", "--device", "cpu"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "checking the task" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "cuda-agent: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["good.py"]


def test_a_missing_gpu_says_what_to_do(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    env = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", "CUDA_AGENT_ARCH": ""}
    done = run("optimize", "good.py", "--device", "cuda", cwd=tmp_path, env=env)
    assert "--device cpu" in done.stderr or "CUDA" in done.stderr
    one_line(done, 1)


def test_a_defect_of_ours_is_one_line_and_a_log(tmp_path):
    code = (
        "import cuda_agent.tasks.targets as t, cuda_agent.cli.main as m\n"
        "def broken(*a, **k):\n    raise RuntimeError('first\\nsecond')\n"
        "t.resolve_target = broken\n"
        "raise SystemExit(m.run(['new', 'x.py', 'folder']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "CUDA_AGENT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    line = one_line(done, 70)
    assert "RuntimeError: first second" in line
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert str(log) in line
    assert "Traceback" in log.read_text() and "in broken" in log.read_text()


def test_a_cache_that_cannot_be_written_leaves_no_folder(tmp_path):
    (tmp_path / "task.py").write_text(GOOD)
    (tmp_path / "file").touch()
    env = {"CUDA_AGENT_CACHE": str(tmp_path / "file")}
    done = run("optimize", "task.py", "--device", "cpu", "--out", "out", cwd=tmp_path, env=env)
    assert "CUDA_AGENT_CACHE" in one_line(done, done.returncode) and done.returncode not in (0, 70)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("group", ["models", "train", "synth"])
def test_a_group_alone_shows_its_commands(group, capsys):
    assert main.run([group]) == 0
    assert f"Usage: cuda-agent {group} [OPTIONS] COMMAND" in capsys.readouterr().out


def test_the_hint_names_the_command_that_was_called(capsys):
    assert main.run(["optimize", "x.py", "--device", "gpu"]) == 2
    said = capsys.readouterr().err
    assert "'--device': 'gpu' is not one of" in said
    assert said.endswith("(see cuda-agent optimize --help)\n")


@pytest.mark.parametrize("argv", [["judge"], ["explain"], ["compare", "nowhere"], ["rejudge"], ["export"]])
def test_a_folder_that_is_not_there_is_bad_usage(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.run([*argv, "nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nowhere" in said and "Name " in said
    assert not list(tmp_path.iterdir())
