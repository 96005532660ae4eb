"""The judge service and the scripts that call it: real sockets, real scripts, a judge that plays a part."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent.config import Precision, Scope, Track
from cuda_agent.errors import TaskError
from cuda_agent.result import Fault, Result, Stage, Times, Violation, ViolationKind
from cuda_agent.task import Task
from cuda_agent.workspace.layout import create
from cuda_agent.workspace.service import SOCKET_VARIABLE, JudgeService
from cuda_agent.workspace.snapshot import Snapshot

CODE = """
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return x
def get_inputs(): return []
def get_init_inputs(): return []
"""
Say = Callable[[str], None]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    create(folder, Task(code=CODE), backend="cpu", track=Track.MATCHED, precision=Precision.DEFAULT)
    return folder


def script(service: JudgeService, workspace: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **service.env}
    return subprocess.run(
        argv, cwd=workspace, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def times(median: float) -> Times:
    return Times.of([median])


def test_verification_prints_the_public_lines(workspace: Path) -> None:
    def judge(scope: Scope, snapshot: Snapshot, say: Say) -> Result:
        assert scope is Scope.VERIFY and "model_new.py" in snapshot.files
        for index in range(5):
            say(f"[PASS] check {index + 1}/5")
        return Result(stage=Stage.VERIFY, compiled=True, correct=True)

    with JudgeService(workspace, judge) as service:
        done = script(service, workspace, "python3", "-m", "utils.verification")
    expected = [*(f"[PASS] check {i}/5" for i in range(1, 6)), "[PASS] verify success"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, expected, "")


def test_a_failed_check_is_said_once_and_exits_1(workspace: Path) -> None:
    def judge(scope: Scope, snapshot: Snapshot, say: Say) -> Result:
        say("[PASS] check 1/5")
        say("[FAIL] check 2/5: output: 3 of 4 elements wrong")
        violation = Violation(ViolationKind.STALE_OUTPUT, "an old output came back")
        return Result(
            stage=Stage.VERIFY, compiled=True, correct=False, detail="output: 3", violations=(violation,)
        )

    with JudgeService(workspace, judge) as service:
        done = script(service, workspace, "python3", "-m", "utils.verification")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "[PASS] check 1/5",
        "[FAIL] check 2/5: output: 3 of 4 elements wrong",
        "[VIOLATION] stale_output: an old output came back",
    ]


def test_profiling_prints_the_public_line_first(workspace: Path) -> None:
    result = Result(
        stage=Stage.DONE,
        compiled=True,
        correct=True,
        eager_us=times(12.3451),
        compile_us=times(10.1),
        candidate_us=times(8.9),
    )
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "python3", "-m", "utils.profiling")
    assert done.returncode == 0
    line = "Torch Baseline: 12.345us, Torch Compile: 10.100us, CUDA Extension: 8.900us"
    assert done.stdout.splitlines()[0] == line


def test_a_failed_build_shows_the_compilers_words_and_the_time(workspace: Path) -> None:
    (workspace / "cuda_extension.so").write_text("stale")
    message = "kernels/a.cpp:3: error: 'x' was not declared"
    result = Result(stage=Stage.BUILD, correct=False, detail=message)
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "bash", "utils/compile.sh")
    assert done.returncode == 1
    first, second, last = done.stdout.splitlines()
    assert (first, second) == ("Compilation failed.", message)
    assert last.startswith("[TIME] Compilation took ")
    assert not (workspace / "cuda_extension.so").exists()


def test_compile_leaves_the_extension_for_the_agents_own_scripts(workspace: Path) -> None:
    result = Result(stage=Stage.LOAD, compiled=True)
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "bash", "utils/compile.sh")
        assert done.stdout.splitlines()[0] == "Compile success: cuda_extension.so", done.stdout
        done = script(service, workspace, "python3", "-c", "import cuda_extension as c; print(c.__name__)")
    assert done.stdout == "cuda_extension\n", done.stderr


@pytest.mark.parametrize("compiled", [True, False])
def test_a_workspace_that_takes_no_extension_is_one_line(
    workspace: Path, caplog: pytest.LogCaptureFixture, compiled: bool
) -> None:
    (workspace / "cuda_extension.so" / "in the way").mkdir(parents=True)
    result = Result(stage=Stage.LOAD, compiled=compiled)
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "bash", "utils/compile.sh")
    assert done.returncode == 2 and done.stdout.startswith("[ERROR] the extension cannot be put into")
    assert done.stdout.count("[ERROR]") == 1 and not caplog.records
    assert not list(workspace.glob(".cuda_extension.so.*"))


def test_errors_of_ours_are_one_line_and_exit_2(workspace: Path) -> None:
    def judge(scope: Scope, snapshot: Snapshot, say: Say) -> Result:
        if scope is Scope.VERIFY:
            raise TaskError("Model is random", "Call eval-safe operations only.")
        raise RuntimeError("a bug of ours")

    with JudgeService(workspace, judge) as service:
        refused = script(service, workspace, "python3", "-m", "utils.verification")
        broken = script(service, workspace, "python3", "-m", "utils.profiling")
        again = script(service, workspace, "python3", "-m", "utils.verification")
    assert refused.stdout == "[ERROR] Model is random. Call eval-safe operations only.\n"
    assert (refused.returncode, broken.returncode, again.returncode) == (2, 2, 2)
    assert "RuntimeError" in broken.stdout and "Traceback" not in broken.stdout + broken.stderr
    assert again.stdout == refused.stdout


def test_infrastructure_is_no_verdict(workspace: Path) -> None:
    result = Result(stage=Stage.BUILD, infrastructure="the disk is full")
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "python3", "-m", "utils.verification")
    assert done.returncode == 2 and "the disk is full" in done.stdout and "[FAIL]" not in done.stdout


def test_a_dead_process_is_said(workspace: Path) -> None:
    result = Result(stage=Stage.VERIFY, compiled=True, correct=False, fault=Fault.CRASH, detail="signal 11")
    with JudgeService(workspace, lambda *_: result) as service:
        done = script(service, workspace, "python3", "-m", "utils.verification")
    assert done.stdout.splitlines() == ["[FAIL] verify: signal 11", "The candidate's process ended: crash."]


def test_results_are_told_and_all_judging_is_in_one_thread(workspace: Path) -> None:
    seen: list[tuple[Scope, str, int]] = []

    def told(scope: Scope, snapshot: Snapshot, result: Result) -> None:
        seen.append((scope, snapshot.hash, threading.get_ident()))

    result = Result(stage=Stage.VERIFY, compiled=True, correct=True)
    with JudgeService(workspace, lambda *_: result, on_result=told) as service:
        script(service, workspace, "python3", "-m", "utils.verification")
        script(service, workspace, "python3", "-m", "utils.profiling")
    assert [scope for scope, _, _ in seen] == [Scope.VERIFY, Scope.PROFILE]
    assert len({thread for _, _, thread in seen}) == 1


def ask(service: JudgeService, request: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(service.env[SOCKET_VARIABLE])
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        try:
            with client.makefile("r") as lines:
                return [json.loads(line) for line in lines]
        except ConnectionResetError:  # the service hung up on a request that is too long
            return []


def test_nonsense_and_clients_that_leave_do_no_harm(workspace: Path) -> None:
    result = Result(stage=Stage.VERIFY, compiled=True, correct=True)
    with JudgeService(workspace, lambda *_: result) as service:
        assert ask(service, b"not json\n") == []
        assert ask(service, b"x" * 10_000) == []
        assert ask(service, b'{"command": "format-disk"}\n')[-1] == {"exit": 2}
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(service.env[SOCKET_VARIABLE])
            client.sendall(b'{"command": "verify"}\n')
        assert ask(service, b'{"command": "verify"}\n')[-1] == {"exit": 0}


def test_a_killed_script_does_not_stop_the_judge(workspace: Path) -> None:
    finished = threading.Event()
    started = threading.Event()

    def judge(scope: Scope, snapshot: Snapshot, say: Say) -> Result:
        started.set()
        for _ in range(20):
            say("working")
            time.sleep(0.02)
        finished.set()
        return Result(stage=Stage.VERIFY, compiled=True, correct=True)

    with JudgeService(workspace, judge) as service:
        env = {**os.environ, **service.env}
        process = subprocess.Popen(
            ["python3", "-m", "utils.verification"], cwd=workspace, env=env, stdout=subprocess.DEVNULL
        )
        assert started.wait(30)
        process.kill()
        process.wait()
        assert finished.wait(30)


def test_without_a_service_the_script_says_so(workspace: Path) -> None:
    with JudgeService(workspace, lambda *_: Result(stage=Stage.DONE)) as service:
        env = {**os.environ, **service.env}
    service.close()
    done = subprocess.run(
        ["python3", "-m", "utils.verification"],
        cwd=workspace,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not Path(service.env[SOCKET_VARIABLE]).parent.exists()
    # Its python3 is gone with it; whichever answers, the text is one line and no traceback.
    assert done.returncode != 0 and "Traceback" not in done.stderr


def test_socket_path_is_short_whatever_tmpdir_is(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with JudgeService(workspace, lambda *_: Result(stage=Stage.DONE)) as service:
        assert len(service.env[SOCKET_VARIABLE]) < 108
        assert ask(service, b'{"command": "nothing"}\n')[-1] == {"exit": 2}
