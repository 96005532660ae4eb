"""``cuda-agent serve`` under load: real judges, callers in processes of their own, a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from candidates import KERNEL, TASK, write_candidate

from cuda_agent.pool.client import HttpPool

TOKEN = "a-token-of-a-test-0123456789"
HANGS = KERNEL.replace("for (long i = 0;", "for (volatile long w = 1; w;) {}\n    for (long i = 0;", 1)
CALLER = Path(__file__).with_name("stress_caller.py")


class Server:
    """A process of ``cuda-agent serve`` on the CPU."""

    def __init__(self, scratch: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        scratch.mkdir()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, "CUDA_AGENT_POOL_TOKEN": TOKEN, "TMPDIR": str(scratch)}
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "cuda_agent", "serve", "--device", "cpu", "--port", str(self.port)]
        self.process = subprocess.Popen([*argv, "--drain", "5"], env=self.env, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/v1/health", timeout=5) as answer:
                assert json.loads(answer.read())["ok"]
                return
            time.sleep(0.1)
        raise AssertionError("the server did not start")

    def processes(self) -> list[int]:
        """Whatever runs with this server's temporary folder in its environment."""
        mark = f"TMPDIR={self.env['TMPDIR']}\0".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdecimal() and mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def gone(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.processes()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(40)
        self.process.kill()
        return self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "scratch")
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.mark.slow
def test_two_callers_forty_candidates_some_cancelled_and_the_server_killed(
    server: Server, tmp_path: Path
) -> None:
    argv = [sys.executable, str(CALLER), server.url]
    callers = [
        subprocess.Popen(
            [*argv, name, str(tmp_path / name)], env=server.env | {"TMPDIR": str(tmp_path)}, stdout=-1
        )
        for name in ("a", "b")
    ]
    pool = HttpPool(server.url, TOKEN)
    deadline = time.monotonic() + 120
    while pool.metrics().ended.get("done", 0) < 6 and time.monotonic() < deadline:
        time.sleep(0.2)
    server.process.kill()
    server.process.wait()
    assert server.gone(30), "a killed server's judges end with it"
    server.start()
    answers = [json.loads(caller.communicate(timeout=300)[0]) for caller in callers]
    assert answers == [{"right": 8, "wrong": 8, "cancelled": 4, "bad": []}] * 2
    metrics = pool.metrics()
    assert (metrics.queued, metrics.running) == (0, 0)
    assert server.stop() == 0
    assert server.gone(30), "nothing outlives the server"
    left = [path.name for path in (tmp_path / "scratch").iterdir()]
    # What the killed server's processes made stays until it is a minute old; the second one's is gone.
    assert all(name.startswith("cuda-agent-scratch-") for name in left), left


@pytest.mark.slow
def test_ctrl_c_of_judge_cancels_its_job(server: Server, tmp_path: Path) -> None:
    workspace = write_candidate(tmp_path / "hangs", kernel=HANGS)
    (workspace / "model.py").write_text(TASK.code)
    argv = [sys.executable, "-m", "cuda_agent", "judge", str(workspace), "--pool", server.url, "--json"]
    judge = subprocess.Popen(argv, env=server.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pool = HttpPool(server.url, TOKEN)
    while pool.metrics().running == 0:
        time.sleep(0.1)
    judge.send_signal(signal.SIGINT)
    out, err = judge.communicate(timeout=30)
    assert (judge.returncode, out) == (130, "") and "cuda-agent: interrupted" in err
    deadline = time.monotonic() + 20
    while pool.metrics().running and time.monotonic() < deadline:
        time.sleep(0.1)
    assert pool.metrics().ended == {"cancelled": 1} and pool.metrics().running == 0
