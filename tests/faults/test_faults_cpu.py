"""Faults of a candidate cost that candidate only; faults of ours are never a verdict (docs/judging.md)."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "judge"))
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession, processes
from cuda_agent.judge import build as builds
from cuda_agent.judge import session as judge_session
from cuda_agent.judge.candidate import Candidate
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.processes import WorkerError
from cuda_agent.result import Fault, Result, Stage
from cuda_agent.sandbox import process as sandbox_process
from cuda_agent.sandbox.isolation import Isolation, isolation
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=8.0)
GIB = 1 << 30
MARK = f"cuda-agent-faults-{os.getpid()}"
isolated = pytest.mark.skipif(
    isolation() is not Isolation.ROOT, reason="needs a control group and a user of its own: root"
)
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="raw system calls are written for x86-64")
# The scan of the library refuses the names; inlined calls pass it (docs/judging.md, "Not caught").
SYSTEM_CALL = """
static long sys(long n, long a = 0, long b = 0, long c = 0) {
    long r;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
"""
FORK, SETSID, KILL, GETPPID, PAUSE, OPEN, WRITE = 57, 112, 62, 110, 34, 2, 1


def kernel(before: str, head: str = "") -> str:
    """The honest kernel, with statements run first in every call."""
    start = "                           long rows, long width) {\n"
    return head + KERNEL.replace(start, start + before + "\n")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeSession]:
    """A judge whose workers may use 2 GiB; nothing of it is left after."""
    monkeypatch.setattr(processes, "_memory_bytes", lambda: 2 * GIB)
    with JudgeSession(TASK, CONFIG) as opened:
        yield opened
    assert not sandboxed()


def verify(session: JudgeSession, folder: Path, source: str) -> Result:
    return session.judge(freeze(write_candidate(folder, kernel=source)), Scope.VERIFY)


def refused(result: Result, *faults: Fault) -> None:
    assert (result.correct, result.infrastructure) == (False, None), result.to_json()
    assert result.fault in faults


def sandboxed() -> list[str]:
    """Command lines of processes in sandboxes that we started, a little after."""
    deadline = time.monotonic() + 5
    while (found := _ours()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _ours() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def _marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_TEST_MARK", MARK)


@isolated
@x86
def test_faults_of_a_candidate_cost_that_candidate_only(session: JudgeSession, tmp_path: Path) -> None:
    starve = (
        "for (long k = 0; k < 4096; ++k) { char* p = new char[1 << 20]; __builtin_memset(p, 1, 1 << 20); }"
    )
    refused(verify(session, tmp_path / "memory", kernel(starve)), Fault.OUT_OF_MEMORY)
    kill = f"sys({KILL}, -1, 9); sys({KILL}, sys({GETPPID}), 9); sys({KILL}, 1, 9);"
    assert verify(session, tmp_path / "kill", kernel(kill, SYSTEM_CALL)).correct is True
    daemon = f"if (sys({FORK}) == 0) {{ sys({SETSID}); for (;;) sys({PAUSE}); }}"
    daemon = f"static int once = 0; if (!once++) {{ {daemon} }}"
    assert verify(session, tmp_path / "daemon", kernel(daemon, SYSTEM_CALL)).infrastructure is None
    assert verify(session, tmp_path / "honest", KERNEL).correct is True
    session.close()
    shared = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not any("memfd:cuda-agent" in str(path.readlink()) for path in shared)


@isolated
@x86
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "faults"),
    [
        ("for (volatile int k = 0;; ++k) {}", {Fault.TIME_OUT}),
        ("__builtin_trap();", {Fault.CRASH}),
        ("__builtin_abort();", {Fault.CRASH}),
        ("*(volatile int*)8 = 1;", {Fault.CRASH}),
        (
            "volatile char big[64 << 20]; for (long k = (64 << 20) - 1; k >= 0; k -= 4096) big[k] = 1;",
            {Fault.CRASH},
        ),
    ],
    ids=["loop", "trap", "abort", "segfault", "stack"],
)
def test_a_crash_or_hang_is_a_fault(
    session: JudgeSession, tmp_path: Path, before: str, faults: set[Fault]
) -> None:
    refused(verify(session, tmp_path / "bad", kernel(before)), *faults)
    assert verify(session, tmp_path / "honest", KERNEL).correct is True


@isolated
@x86
@pytest.mark.slow
def test_a_fork_bomb_ends_with_its_candidate(session: JudgeSession, tmp_path: Path) -> None:
    bomb = f"for (;;) sys({FORK});"
    refused(verify(session, tmp_path / "forks", kernel(bomb, SYSTEM_CALL)), Fault.TIME_OUT, Fault.CRASH)
    assert verify(session, tmp_path / "honest", KERNEL).correct is True


@isolated
@x86
@pytest.mark.slow
def test_ten_gigabytes_written_do_not_reach_the_disk(session: JudgeSession, tmp_path: Path) -> None:
    free = os.statvfs("/").f_bavail
    write = f"""
    static char block[1 << 20];
    long fd = sys({OPEN}, (long)"/tmp/big", 66, 384);
    for (int k = 0; k < 10240; ++k)
        if (sys({WRITE}, fd, (long)block, sizeof block) <= 0) __builtin_trap();
    """
    refused(verify(session, tmp_path / "big", kernel(write, SYSTEM_CALL)), Fault.CRASH, Fault.OUT_OF_MEMORY)
    assert free - os.statvfs("/").f_bavail < (GIB >> 1) // os.statvfs("/").f_frsize


TEMPLATE_BOMB = """
template <int depth, long index> struct Bomb {
    Bomb<depth - 1, 2 * index> left;
    Bomb<depth - 1, 2 * index + 1> right;
};
template <long index> struct Bomb<0, index> { char last; };
static Bomb<40, 1> bomb;
"""


@isolated
@pytest.mark.slow
def test_a_compiler_that_eats_all_memory_ends_in_a_message(
    session: JudgeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = freeze(write_candidate(tmp_path / "bomb", kernel=kernel("", TEMPLATE_BOMB)))
    with monkeypatch.context() as patch:
        patch.setattr(builds, "_LIMITS", replace(builds._LIMITS, memory_bytes=GIB))
        bomb = session.judge(frozen, Scope.FULL)
    assert (bomb.stage, bomb.correct, bomb.reward, bomb.infrastructure) == (Stage.BUILD, False, -1, None)
    assert "memory" in bomb.detail, bomb.detail
    assert verify(session, tmp_path / "honest", KERNEL).correct is True


def _kill_worker(script: str, mapped: bytes, stop: threading.Event) -> None:
    """SIGKILL, from outside, a worker of this test that has loaded ``mapped``; not its launcher."""
    while not stop.is_set():
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                ours = MARK.encode() in (folder / "environ").read_bytes()
                words = (folder / "cmdline").read_bytes().split(b"\0")
                has_loaded = mapped in (folder / "maps").read_bytes()
            except OSError:
                continue
            is_program = b"-P" in words[:3] and any(word.endswith(script.encode()) for word in words)
            if ours and is_program and has_loaded:
                os.kill(int(folder.name), signal.SIGKILL)
                stop.set()
                return
        time.sleep(0.01)


def _judged_while_killing(session: JudgeSession, folder: Path, script: str, mapped: bytes) -> Result:
    slow = kernel("for (volatile long w = 0; w < 300000000; ++w) {}")
    stop = threading.Event()
    killer = threading.Thread(target=_kill_worker, args=(script, mapped, stop))
    killer.start()
    try:
        return session.judge(freeze(write_candidate(folder, kernel=slow)), Scope.VERIFY)
    finally:
        stop.set()
        killer.join()


@isolated
def test_a_killed_reference_is_infrastructure_and_the_next_verdict_is_right(
    session: JudgeSession, tmp_path: Path
) -> None:
    result = _judged_while_killing(session, tmp_path / "slow", "reference_worker.py", b"libtorch_cpu")
    assert (result.correct, result.reward) == (None, None)
    assert result.infrastructure is not None and "SIGKILL" in result.infrastructure
    assert verify(session, tmp_path / "honest", KERNEL).correct is True


@isolated
@pytest.mark.slow
def test_a_candidate_killed_once_is_tried_again(session: JudgeSession, tmp_path: Path) -> None:
    result = _judged_while_killing(session, tmp_path / "slow", "candidate_worker.py", b"cuda_extension")
    assert result.correct is True and result.infrastructure is None
    assert any("did not repeat" in note for note in result.notes)


JUDGE = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from candidates import KERNEL, TASK, write_candidate
from cuda_agent.config import Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.workspace.snapshot import freeze
from test_faults_cpu import CONFIG, kernel
folder = write_candidate(Path({folder!r}), kernel=kernel("for (;;) asm volatile(\\"\\");"))
with JudgeSession(TASK, CONFIG) as session:
    print("started", flush=True)
    session.judge(freeze(folder), Scope.VERIFY)
"""


@isolated
def test_a_killed_judge_leaves_no_process_and_the_next_one_judges(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    code = JUDGE.format(path=[str(here), str(here.parent / "judge")], folder=str(tmp_path))
    judge = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None and judge.stdout.readline() == "started\n"
    _wait_until(lambda: any("candidate_worker" in line for line in _ours()))
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert not sandboxed()
    with JudgeSession(TASK, CONFIG) as session:  # the dead one's lease is free, its cache is whole
        assert verify(session, tmp_path / "next", KERNEL).correct is True


def _wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB with 4 KiB free."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False)
    if done.returncode != 0:
        pytest.skip("a file system of limited size needs root and mount")
    (disk / "ballast").write_bytes(bytes((2 << 20) - 4096))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@isolated
@pytest.mark.parametrize("variable", ["TMPDIR", "CUDA_AGENT_CACHE"])
def test_a_full_disk_is_infrastructure(tiny_disk: Path, tmp_path: Path, variable: str) -> None:
    workspace = write_candidate(tmp_path / "work")
    (workspace / "model.py").write_text(TASK.code)
    env = {**os.environ, variable: str(tiny_disk)}
    command = [sys.executable, "-m", "cuda_agent", "judge", str(workspace), "--device", "cpu", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    if done.stdout.strip():
        result = json.loads(done.stdout)
        assert (result["correct"], result["reward"]) == (None, None)
        assert "No space left" in result["infrastructure"]
    else:
        assert "No space left" in done.stderr and "Traceback" not in done.stderr


def test_a_device_that_fails_is_taken_out_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_off(_: Candidate) -> None:
        raise WorkerError(FailureKind.CUDA_ERROR, "the device fell off the bus")

    with JudgeSession(TASK, CONFIG) as session:
        monkeypatch.setattr(Candidate, "settle", fall_off)
        first = verify(session, tmp_path, KERNEL)
        start = time.monotonic()
        second = verify(session, tmp_path, KERNEL)
    for result in (first, second):
        assert (result.correct, result.reward, result.fault) == (None, None, None)
        assert result.infrastructure is not None and "out of use" in result.infrastructure
    assert "fell off the bus" in str(second.infrastructure) and time.monotonic() - start < 10


@pytest.mark.slow
def test_a_host_without_isolation_is_said_in_the_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sandbox_process, judge_session):
        monkeypatch.setattr(module, "isolation", lambda: Isolation.NONE)
    monkeypatch.setattr(sandbox_process, "isolation_as_ourselves", lambda: Isolation.NONE)
    with JudgeSession(TASK, CONFIG) as session:
        result = verify(session, tmp_path, KERNEL)
    assert result.correct is True and sum("namespaces" in note for note in result.notes) == 1
