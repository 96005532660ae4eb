"""The pool over HTTP: a real server, the real client; judging is scripted where it is not the point."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from candidates import TASK
from served import TOKEN, Served, request

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.errors import PoolError, TaskError, UsageError
from cuda_agent.pool.client import HttpPool
from cuda_agent.pool.contract import JobState, NoSuchJobError, QueueFullError
from cuda_agent.pool.remote import judge_by
from cuda_agent.pool.wire import request_to_dict
from cuda_agent.result import Result

BAD_NAMES = (
    "../evil.py",
    "/etc/passwd",
    "kernels/../../x.cu",
    "kernels/x.so",
    "utils/compile.py",
    "kernels/a\0.cu",
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as server:
        yield server


def client(served: Served, token: str = TOKEN) -> HttpPool:
    return HttpPool(served.url, token, first_patience_s=0.5, patience_s=5.0)


def refused(served: Served, body: object, *, path: str = "/v1/jobs") -> tuple[int, dict[str, str]]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    asked = urllib.request.Request(served.url + path, data=json.dumps(body).encode(), headers=headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=10)
    return caught.value.code, json.loads(caught.value.read())["error"]


def test_a_verdict_over_http_is_the_verdict(served: Served) -> None:
    lines: list[str] = []
    result = judge_by(client(served), request("ok x"), say=lines.append)
    assert (result.correct, result.detail, lines) == (True, "x", ["judging x on cuda:0"])
    assert client(served).metrics().ended == {"done": 1}


def test_endings_stay_distinct(served: Served) -> None:
    pool = client(served)
    with pytest.raises(TaskError, match="random"):
        judge_by(pool, request("task x"))
    lost = judge_by(pool, request("die x"))
    assert isinstance(lost, Result) and lost.infrastructure is not None and lost.correct is None
    with pytest.raises(UsageError, match="no cpu device"):
        judge_by(pool, request("ok x", config=JudgeConfig(device=Device.CPU)))


def test_a_wrong_token_and_a_server_that_is_down_are_one_line_each(served: Served) -> None:
    with pytest.raises(PoolError, match="refuses the token"):
        client(served, "x" * 20).metrics()
    served.close()
    with pytest.raises(PoolError, match=r"no pool answers at http://.* \(Connection refused\)"):
        client(served).metrics()


def test_a_full_queue_is_waited_out_and_then_told(served: Served) -> None:
    pool = client(served)
    held = pool.submit(request("wait x"), caller="a")
    while pool.job(held).state is JobState.QUEUED:
        time.sleep(0.01)
    for number in range(served.QUEUE):
        pool.submit(request(f"ok {number}"), caller="a")
    hasty = HttpPool(served.url, TOKEN, patience_s=0.3)
    with pytest.raises(QueueFullError, match="full"):
        hasty.submit(request("ok late"), caller="b")
    threading.Timer(0.5, served.gate.set).start()
    assert judge_by(pool, request("ok patient")).detail == "patient"


def test_an_interrupted_wait_cancels_its_job(served: Served) -> None:
    pool = client(served)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_by(pool, request("wait x"), say=interrupt)
    deadline = time.monotonic() + 5
    while pool.metrics().ended != {"cancelled": 1} and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pool.metrics().ended == {"cancelled": 1} and pool.metrics().running == 0


def test_a_restarted_server_gets_the_job_again(served: Served) -> None:
    results: list[Result] = []
    pool = client(served)
    waiting = threading.Thread(target=lambda: results.append(judge_by(pool, request("wait x"))))
    waiting.start()
    while pool.metrics().running == 0:
        time.sleep(0.01)
    served.restart()
    served.gate.set()
    waiting.join(20)
    assert [r.detail for r in results] == ["x"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_file_gets_a_name_outside_a_candidate(served: Served, name: str) -> None:
    body = request_to_dict(request("ok x"))
    body["files"][name] = body["files"]["model_new.py"]
    status, error = refused(served, body)
    assert (status, error["kind"]) == (400, "UsageError")
    body = request_to_dict(request("ok x"))
    body["task"]["assets"] = {name: "AAAA"}
    assert refused(served, body)[0] == 400
    assert not list(served.folder.rglob("*"))


def test_what_a_server_never_takes(served: Served) -> None:
    body = request_to_dict(request("ok x"))
    assert refused(served, {**body, "task": {**body["task"], "search_path": ["/"]}})[0] == 422
    assert refused(served, {**body, "padding": "x" * served.MAX_BODY})[0] == 413
    assert refused(served, {**body, "files": {"kernels/x.cu": "AAAA"}})[0] == 400
    assert refused(served, {**body, "files": {"model_new.py": "not base64"}})[0] == 400
    assert refused(served, {**body, "config": {"build_limit_s": 1e9}})[0] == 400
    with pytest.raises(NoSuchJobError):
        client(served).job("0" * 32)


def test_a_body_without_an_announced_length_is_measured_as_it_comes(served: Served) -> None:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=10)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    parts = iter([b"x" * (served.MAX_BODY // 2)] * 3)
    connection.request("POST", "/v1/jobs", body=parts, headers=headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_tasks_files_live_as_long_as_its_job(served: Served, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"numbers")
    pool = client(served)
    job = pool.submit(request("wait x", assets={"weights.pt": weights}), caller="a")
    assert [path.read_bytes() for path in served.folder.rglob("*.pt")] == [b"numbers"]
    served.gate.set()
    while not pool.job(job).state.ended:
        time.sleep(0.01)
    deadline = time.monotonic() + 5
    while list(served.folder.rglob("*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(served.folder.rglob("*.pt"))


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model_new.py").write_text("x = 1\n")
    (tmp_path / "model.py").write_text(TASK.code)
    argv = [
        sys.executable,
        "-m",
        "cuda_agent",
        "judge",
        str(tmp_path),
        "--pool",
        "http://127.0.0.1:9",
        "--json",
    ]
    for token, words in (("", "no token for the pool"), (TOKEN, "no pool answers at http://127.0.0.1:9")):
        env = {**os.environ, "CUDA_AGENT_POOL_TOKEN": token}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "" and words in done.stderr and done.stderr.count("\n") == 1
        assert done.returncode == (1 if token else 2) and TOKEN not in done.stderr
