"""The pool of one machine: real judges in real processes, one CPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import TaskError, UsageError
from cuda_agent.pool.contract import JobState, JudgeRequest
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.pool.remote import judge_by
from cuda_agent.pool.worker_process import WorkerLimits
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=20.0)
WRONG = KERNEL.replace("+ shift[j]", "+ shift[j] + 0.25f")
HANGS = KERNEL.replace("for (long i = 0;", "for (volatile long w = 1; w;) {}\n    for (long i = 0;", 1)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    limits = WorkerLimits(sessions=2)
    with LocalPool(PoolConfig(devices=("cpu",), workers=1, worker=limits)) as opened:
        yield opened


def request(folder: Path, kernel: str = KERNEL, *, scope: Scope = Scope.VERIFY) -> JudgeRequest:
    return JudgeRequest(TASK, freeze(write_candidate(folder, kernel=kernel)), CONFIG, scope)


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task")
    return [int(c) for task in path.iterdir() for c in (task / "children").read_text().split()]


@pytest.mark.slow
def test_verdicts_lines_and_metrics(pool: LocalPool, tmp_path: Path) -> None:
    lines: list[str] = []
    right = judge_by(pool, request(tmp_path / "a"), say=lines.append)
    wrong = judge_by(pool, request(tmp_path / "b", WRONG))
    assert (right.correct, wrong.correct) == (True, False)
    assert right.task_hash == TASK.hash and right.candidate_hash != wrong.candidate_hash
    assert sum("[PASS]" in line for line in lines) == CONFIG.num_draws
    metrics = pool.metrics()
    assert (metrics.queued, metrics.running, metrics.warm_hits) == (0, 0, 1)
    assert metrics.ended == {"done": 2} and metrics.verdicts_per_minute <= 2
    (device,) = metrics.devices
    assert device.warm_sessions == 1 and 0 < device.utilisation < 1 and device.out_of_use == ""


@pytest.mark.slow
def test_a_running_job_is_cancelled_and_the_judge_goes_on(pool: LocalPool, tmp_path: Path) -> None:
    judge_by(pool, request(tmp_path / "warm"))  # the judge's process is there, whatever ran before
    before = set(children(os.getpid()))
    running = pool.submit(request(tmp_path / "hangs", HANGS), caller="a")
    waiting = pool.submit(request(tmp_path / "waits"), caller="a")
    while pool.job(running).state is JobState.QUEUED:
        time.sleep(0.05)
    time.sleep(2.0)  # in the middle of its endless call
    assert pool.job(waiting).position == 0
    assert pool.cancel(waiting).state is JobState.CANCELLED
    pool.cancel(running)
    deadline = time.monotonic() + 15
    while not pool.job(running).state.ended and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pool.job(running).state is JobState.CANCELLED
    assert judge_by(pool, request(tmp_path / "after")).correct is True
    assert set(children(os.getpid())) == before, "the judge's process was replaced"


@pytest.mark.slow
def test_a_judge_that_is_killed_is_replaced_and_its_job_judged(pool: LocalPool, tmp_path: Path) -> None:
    job = pool.submit(request(tmp_path / "x"), caller="a")
    while pool.job(job).state is JobState.QUEUED:
        time.sleep(0.02)
    for pid in children(os.getpid()):
        if "cuda_agent.pool.worker" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    ended = pool.job(job)
    while not ended.state.ended:
        ended = pool.job(job, wait_s=5.0, seen=ended.num_lines)
    assert ended.state is JobState.DONE and ended.result is not None and ended.result.correct is True
    assert "judging again" in " ".join(ended.lines)


@pytest.mark.slow
def test_what_cannot_be_judged_is_refused_as_the_judge_refuses_it(pool: LocalPool, tmp_path: Path) -> None:
    random = Task(name="random", code=TASK.code.replace("+ self.shift", "+ torch.rand_like(x)"))
    with pytest.raises(TaskError):
        judge_by(pool, replace(request(tmp_path), task=random))
    with pytest.raises(UsageError, match="no cuda device"):
        pool.submit(replace(request(tmp_path), config=replace(CONFIG, device=Device.CUDA)), caller="a")
    with pytest.raises(UsageError, match="build_limit_s"):
        pool.submit(replace(request(tmp_path), config=replace(CONFIG, build_limit_s=1e6)), caller="a")
