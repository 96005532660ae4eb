"""What the pool does with its workers, with workers that need no compiler: the protocol's other side."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from candidates import TASK
from scripted_worker import LOST, ScriptedWorker

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import InfrastructureError, PoolError, TaskError
from cuda_agent.pool.contract import Job, JobState, JudgeRequest, NoSuchJobError, QueueFullError
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.pool.remote import judge_by
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def opened(
    gate: threading.Event, log: list[tuple[str, str]], *devices: str, queue: int = 100, keep: int = 100
) -> LocalPool:
    config = PoolConfig(devices=devices or ("cuda:0",), workers=1, queue_limit=queue, keep=keep)
    return LocalPool(config, make_worker=lambda device: ScriptedWorker(device, gate, log))


def request(words: str, task: Task = TASK) -> JudgeRequest:
    return JudgeRequest(task, Snapshot({"model_new.py": words.encode()}), JudgeConfig(), Scope.VERIFY)


def ended(pool: LocalPool, job_id: str) -> Job:
    job = pool.job(job_id)
    deadline = time.monotonic() + 10
    while not job.state.ended and time.monotonic() < deadline:
        job = pool.job(job_id, wait_s=1.0, seen=job.num_lines)
    return job


def started(pool: LocalPool, job_id: str) -> None:
    while pool.job(job_id).state is JobState.QUEUED:
        time.sleep(0.005)


def test_callers_take_turns_on_one_device(gate: threading.Event) -> None:
    log: list[tuple[str, str]] = []
    with opened(gate, log) as pool:
        first = pool.submit(request("wait first"), caller="a")
        started(pool, first)
        ids = [pool.submit(request(f"ok a{n}"), caller="a") for n in range(3)]
        ids += [pool.submit(request("ok b0"), caller="b")]
        gate.set()
        assert all(ended(pool, job_id).state is JobState.DONE for job_id in ids)
    names = [name for _, name in log]
    assert names.index("b0") <= 2 and [n for n in names if n[0] == "a"] == ["a0", "a1", "a2"]


def test_a_device_that_falls_off_is_used_no_more_and_its_job_goes_to_another(gate: threading.Event) -> None:
    log: list[tuple[str, str]] = []
    with opened(gate, log, "cuda:0", "cuda:1") as pool:
        for number in range(20):
            job = ended(pool, pool.submit(request(f"fall {number}"), caller="a"))
            assert (job.state, job.device) == (JobState.DONE, "cuda:1")
        assert [device for device, _ in log].count("cuda:0") <= 1
        used = {d.device: d.out_of_use for d in pool.metrics().devices}
        if any(device == "cuda:0" for device, _ in log):
            assert used == {"cuda:0": LOST, "cuda:1": ""}


def test_with_the_last_device_gone_what_waits_is_lost_and_nothing_more_is_taken(
    gate: threading.Event,
) -> None:
    with opened(gate, []) as pool:
        first = pool.submit(request("wait first"), caller="a")
        started(pool, first)
        falls = pool.submit(request("fall x"), caller="a")
        waits = pool.submit(request("ok y"), caller="a")
        gate.set()
        for job_id in (falls, waits):
            job = ended(pool, job_id)
            assert job.state is JobState.LOST
            assert job.result is not None and job.result.infrastructure == LOST
            assert (job.result.correct, job.result.reward) == (None, None)
        with pytest.raises(InfrastructureError, match="out of use"):
            pool.submit(request("ok z"), caller="a")


def test_a_judge_that_dies_twice_loses_its_job_and_not_the_pool(gate: threading.Event) -> None:
    with opened(gate, []) as pool:
        result = judge_by(pool, request("die x"))
        assert result.infrastructure is not None and "signal 9" in result.infrastructure
        assert (result.correct, result.reward, result.task_hash) == (None, None, TASK.hash)
        assert judge_by(pool, request("ok y")).correct is True
        assert pool.metrics().ended == {"lost": 1, "done": 1}


def test_errors_come_back_as_what_they_are(gate: threading.Event) -> None:
    with opened(gate, []) as pool, pytest.raises(TaskError, match="random"):
        judge_by(pool, request("task x"))


def test_one_id_is_one_job(gate: threading.Event) -> None:
    log: list[tuple[str, str]] = []
    with opened(gate, log) as pool:
        for _ in range(3):
            assert pool.submit(request("ok x"), caller="a", job_id="f" * 32) == "f" * 32
        assert ended(pool, "f" * 32).state is JobState.DONE
        assert len(log) == 1


def test_a_cancelled_job_stays_cancelled_and_its_device_is_free(gate: threading.Event) -> None:
    with opened(gate, []) as pool:
        running = pool.submit(request("wait x"), caller="a")
        started(pool, running)
        waiting = pool.submit(request("ok y"), caller="a")
        assert pool.cancel(waiting).state is JobState.CANCELLED
        pool.cancel(running)
        assert ended(pool, running).state is JobState.CANCELLED
        assert judge_by(pool, request("ok z")).correct is True
        assert pool.cancel(running).state is JobState.CANCELLED
        assert pool.metrics().ended == {"cancelled": 2, "done": 1}


def test_a_full_queue_refuses_and_old_results_are_forgotten(gate: threading.Event) -> None:
    with opened(gate, [], queue=2, keep=1) as pool:
        ids = [pool.submit(request("wait x"), caller="a")]
        started(pool, ids[0])
        ids += [pool.submit(request(f"ok {n}"), caller="a") for n in range(2)]
        with pytest.raises(QueueFullError):
            pool.submit(request("ok 3"), caller="a")
        gate.set()
        assert ended(pool, ids[2]).state is JobState.DONE
        assert pool.metrics().kept == 1
        with pytest.raises(NoSuchJobError):
            pool.job(ids[0])


def test_a_closed_pool_takes_nothing_and_has_ended_everything(gate: threading.Event) -> None:
    pool = opened(gate, [])
    jobs = [pool.submit(request("wait x"), caller="a") for _ in range(3)]
    started(pool, jobs[0])
    pool.close()
    assert {pool.job(job_id).state for job_id in jobs} <= {JobState.CANCELLED, JobState.DONE}
    with pytest.raises(PoolError, match="shutting down"):
        pool.submit(request("ok x"), caller="a")
    pool.close()


def test_a_cpu_job_never_goes_to_a_gpu(gate: threading.Event) -> None:
    log: list[tuple[str, str]] = []
    with opened(gate, log, "cuda:0", "cpu") as pool:
        for device, place in ((Device.CPU, "cpu"), (Device.CUDA, "cuda:0"), (Device.AUTO, "cuda:0")):
            asked = replace(request("ok x"), config=JudgeConfig(device=device))
            assert ended(pool, pool.submit(asked, caller="a")).device == place
