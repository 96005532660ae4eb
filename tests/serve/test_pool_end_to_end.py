"""``optimize`` and ``eval`` with ``--pool`` against a real ``cuda-agent serve``: commands in, files out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from candidates import TASK

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-a-test-0123456789"


@dataclass(frozen=True)
class Server:
    """A served pool of this machine's CPU, and the environment of those that use it."""

    url: str
    env: Mapping[str, str]

    def ended(self) -> int:
        """Jobs that came to an end."""
        asked = urllib.request.Request(f"{self.url}/v1/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return sum(json.load(answer)["ended"].values())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "CUDA_AGENT_POOL_TOKEN": TOKEN}
    argv = [sys.executable, "-m", "cuda_agent", "serve", "--device", "cpu", "--port", str(port)]
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, env=env, stdout=stream, stderr=stream, cwd=log.parent)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while not _answers(url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield Server(url, env)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/health", timeout=5):
            return True
    except OSError:
        return False


def run(server: Server, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cuda_agent", *argv, "--pool", server.url]
    return subprocess.run(
        command, cwd=folder, env=server.env, capture_output=True, text=True, timeout=600, check=False
    )


def test_optimize_is_judged_by_the_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.code)
    before = server.ended()
    done = run(server, tmp_path, "optimize", "task.py", "--device", "cpu", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["correct"] is True and result["reward"] in (1, 2, 3)
    assert result["candidate_us"]["median"] > 0 and result["task_hash"]
    assert server.ended() > before
    assert TOKEN not in done.stdout + done.stderr
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


def test_eval_is_judged_by_the_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.py").write_text(TASK.code)
    before = server.ended()
    argv = ("eval", "set", "--device", "cpu", "--out", "run", "--no-admission", "--jobs", "1")
    done = run(server, tmp_path, *argv)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in (tmp_path / "run").rglob("result.json")]
    assert results and all(result["correct"] is True for result in results)
    assert server.ended() > before
