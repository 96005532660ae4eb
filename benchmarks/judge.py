"""The judge against three separate scripts, on the same candidates in one run.

    PYTHONPATH=src python3 benchmarks/judge.py --device cuda --seconds 60 --out judge.json

Parts, each within ``--seconds`` (a step under way is ended at the limit, and what is missing is said):

- ``phases``: for every candidate, the flow of the public scripts (three fresh processes: build everything
  anew, five comparisons, times of eager, torch.compile and candidate), then ours on a candidate that differs
  from all before, so that no object is cached. Medians by phase, and their ratio.
- ``throughput``: different candidates through a pool from several callers; verdicts a minute.
- ``repeatability``: one candidate again and again: rewards, and the coefficient of variation of its median.

The three scripts are written here, after the order of work of the public ones; they are no copy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pool as pool_benchmark
from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge.build import fixed_files
from cuda_agent.judge.session import JudgeSession
from cuda_agent.pool.contract import JobState, JudgeRequest
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.workspace.snapshot import Snapshot

WARM_UP_LIMIT_S = 300.0
PHASES = ("compile", "verify", "profile")
# "wait" is for processes that import torch while the candidate compiles.
OURS = {"build": "compile", "load": "verify", "verify": "verify", "profile": "profile"}

COMPILE = """
import glob, os, sys
from torch.utils import cpp_extension
cuda = sys.argv[1] == "cuda"
sources = ["binding.cpp"] + sorted(glob.glob("kernels/*.cu") + glob.glob("kernels/*.cpp"))
os.makedirs("build")
flags = ["-O3"] if cuda else ["-O3", "-march=native", "-fopenmp"]
cpp_extension.load(
    name="cuda_extension", sources=sources, build_directory="build", with_cuda=cuda, is_python_module=False,
    extra_cflags=flags, extra_cuda_cflags=["-O3"], extra_include_paths=[os.getcwd()],
    extra_ldflags=[] if cuda else ["-fopenmp"],
)
"""
LOAD = """
import sys, time, torch
sys.path[:0] = [".", "build"]
import model, model_new
device = sys.argv[1]
arguments = model.get_init_inputs()
torch.manual_seed(0)
eager = model.Model(*arguments).eval().to(device)
new = model_new.ModelNew(*arguments).eval().to(device)
new.load_state_dict(eager.state_dict())
draw = lambda: [x.to(device) if isinstance(x, torch.Tensor) else x for x in model.get_inputs()]
torch.set_grad_enabled(False)
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
"""
VERIFY = (
    LOAD
    + """
for _ in range(5):
    x = draw()
    torch.testing.assert_close(new(*x), eager(*x), atol=1e-2, rtol=1e-2)
"""
)
PROFILE = (
    LOAD
    + """
x = draw()
def median_us(call, least=20, seconds=1.0):
    for _ in range(5):
        call(*x)
    wait()
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call(*x)
        wait()
        samples.append(1e6 * (time.perf_counter() - start))
    return sorted(samples)[len(samples) // 2]
for name, call in (("eager", eager), ("compile", torch.compile(eager)), ("candidate", new)):
    print(name, median_us(call))
"""
)
SCRIPTS = dict(zip(PHASES, (COMPILE, VERIFY, PROFILE), strict=True))


def different(device: Device, number: int) -> Snapshot:
    """A right candidate none of whose objects is cached: every source says something new."""
    snapshot, _ = pool_benchmark.candidate(5 * number, device)
    mark = f"\n// {time.time_ns()}\n".encode()
    return Snapshot(
        {name: data if name.endswith(".py") else data + mark for name, data in snapshot.files.items()}
    )


def three_scripts(device: Device, snapshot: Snapshot, deadline: float) -> dict[str, float]:
    """Seconds by phase of three fresh processes.

    Raises:
        RuntimeError: one of them failed.
        TimeoutExpired: the part's time was up.
    """
    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot.write(folder)
        for file, data in fixed_files().items():
            (folder / file).write_bytes(data)
        (folder / "model.py").write_text(pool_benchmark.task(device).code, encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": "", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        for phase, script in SCRIPTS.items():
            start = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", script, device.value],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=max(1.0, deadline - start),
                check=False,
            )
            seconds[phase] = time.monotonic() - start
            if done.returncode:
                raise RuntimeError(f"{phase} of the three scripts failed: {done.stderr[-600:]}")
    return {**seconds, "total": sum(seconds.values())}


def phases(device: Device, config: JudgeConfig, asked: argparse.Namespace) -> dict[str, Any]:
    """Both flows on the same candidates in turn, until the time is up; ours is warmed up before."""
    deadline = time.monotonic() + asked.seconds
    scripts: list[dict[str, float]] = []
    ours: list[dict[str, float]] = []
    warm_up: list[dict[str, float]] = []
    ended = "all"
    with JudgeSession(pool_benchmark.task(device), config) as session:
        # Baselines are measured by the first; precompiled headers are made by the second.
        for number in range(asked.warm_up):
            warm_up.append(_judged(session, different(device, number)))
        warm_s = sum(row["total"] for row in warm_up)
        deadline += warm_s
        for number in range(asked.warm_up, asked.warm_up + asked.candidates):
            snapshot = different(device, number)
            ours.append(_judged(session, snapshot))
            try:
                scripts.append(three_scripts(device, snapshot, deadline))
            except subprocess.TimeoutExpired:
                ended = "the three scripts were still at work when the time was up"
            if time.monotonic() > deadline:
                break
    them, us = _medians(scripts), _medians(ours)
    return {
        "ended": ended,
        "three_scripts_s": them,
        "ours_s": us,
        "ratio": {phase: them[phase] / us[phase] for phase in them if us.get(phase)},
        "warm_up_s": warm_up,
        "rows": {"three_scripts": scripts, "ours": ours},
    }


def _judged(session: JudgeSession, snapshot: Snapshot) -> dict[str, float]:
    result = session.judge(snapshot, Scope.FULL)
    if not result.correct:
        raise RuntimeError(f"our judge: {result.stage} {result.detail} {result.infrastructure}")
    seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for name, value in result.seconds.items():
        if name in OURS:
            seconds[OURS[name]] += value
    return {**seconds, "total": result.seconds["total"]}


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]} if rows else {}


def throughput(device: Device, config: JudgeConfig, asked: argparse.Namespace) -> dict[str, Any]:
    """Candidates that differ in everything but the binding, from several callers; one warms up first."""
    place = "cuda:0" if device is Device.CUDA else "cpu"
    with LocalPool(PoolConfig(devices=(place,), queue_limit=4096, caller_limit=4096)) as pool:
        task = pool_benchmark.task(device)

        def submit(number: int) -> str:
            request = JudgeRequest(task, pool_benchmark.candidate(number, device)[0], config, Scope.FULL)
            return pool.submit(request, caller=f"caller-{number % asked.callers}")

        start = time.monotonic()
        first = submit(0)
        _wait(pool, [first], start + WARM_UP_LIMIT_S)
        warm_s = time.monotonic() - start
        start = time.monotonic()
        jobs = [submit(number) for number in range(1, asked.jobs + 1)]
        _wait(pool, jobs, start + asked.seconds)
        took = time.monotonic() - start
        ended = [pool.job(job) for job in jobs]
        done = [job for job in ended if job.state is JobState.DONE]
        return {
            "first_s": warm_s,
            "verdicts": len(done),
            "of": len(jobs),
            "seconds": took,
            "callers": asked.callers,
            "verdicts_per_minute": 60 * len(done) / took,
            "rewards": [job.result.reward if job.result else None for job in ended],
        }


def _wait(pool: LocalPool, jobs: list[str], deadline: float) -> None:
    while time.monotonic() < deadline and not all(pool.job(job).state.ended for job in jobs):
        time.sleep(0.02)


def repeatability(device: Device, config: JudgeConfig, asked: argparse.Namespace) -> dict[str, Any]:
    """The same candidate up to ``--repeats`` times, its objects cached."""
    snapshot, _ = pool_benchmark.candidate(0, device)
    rewards: list[int | None] = []
    medians: list[float] = []
    with JudgeSession(pool_benchmark.task(device), config) as session:
        session.judge(snapshot, Scope.FULL)
        deadline = time.monotonic() + asked.seconds
        while len(rewards) < asked.repeats and time.monotonic() < deadline:
            result = session.judge(snapshot, Scope.FULL)
            rewards.append(result.reward)
            if result.candidate_us is not None:
                medians.append(result.candidate_us.median)
    spread = statistics.stdev(medians) / statistics.mean(medians) if len(medians) > 1 else None
    return {
        "repeats": len(rewards),
        "rewards": rewards,
        "same_reward": len(set(rewards)) == 1,
        "medians_us": medians,
        "coefficient_of_variation": spread,
    }


PARTS: dict[str, Callable[[Device, JudgeConfig, argparse.Namespace], dict[str, Any]]] = {
    "phases": phases,
    "throughput": throughput,
    "repeatability": repeatability,
}


def main() -> int:
    """Run the parts asked for; 1 where one failed. What has ended is on disk after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each part, warm-up not counted")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--candidates", type=int, default=5, help="of the phases")
    parser.add_argument("--warm-up", type=int, default=2, help="candidates judged before the phases")
    parser.add_argument("--jobs", type=int, default=100, help="of the throughput")
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--timing-budget-s", type=float, default=6.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = Device(asked.device)
    config = JudgeConfig(device=device, timing_budget_s=asked.timing_budget_s)
    figures: dict[str, Any] = {
        "about": _about(device),
        "settings": {k: v for k, v in vars(asked).items() if k != "out"},
    }
    failed = False
    for name in asked.parts:
        try:
            figures[name] = PARTS[name](device, config, asked)
        except Exception as error:  # noqa: BLE001  one part's failure leaves the others
            traceback.print_exc()
            figures[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed = True
        print(json.dumps({name: figures[name]}, indent=1), flush=True)
        if asked.out:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _about(device: Device) -> dict[str, Any]:
    import torch

    on_gpu = device is Device.CUDA
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(0) if on_gpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


if __name__ == "__main__":
    sys.exit(main())
