"""A made-up evaluation on disk: seeded, plausible, and named synthetic wherever a reader could look."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

from cuda_agent.evals.metrics_records import EvalAttempt, EvalTask
from cuda_agent.evals.run_files import Arm, EvalFolder, EvalSettings, attempt_line
from cuda_agent.result import Fault, Result, Stage, Times, Violation, ViolationKind
from cuda_agent.trajectory import Ending, Header, Observation, ToolCall, Turn, Usage

DEVICE = "Synthetic device (made up)"
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
_OPS = (
    "Matmul",
    "Softmax",
    "LayerNorm",
    "Conv2d",
    "ReLU",
    "Cumsum",
    "MaxPool",
    "GELU",
    "Attention",
    "BatchNorm",
)
_VERSIONS = {"torch": "0.0-synthetic", "cuda_agent": "0.0-synthetic"}


def write_eval(
    root: Path,
    *,
    num_tasks: int = 30,
    samples: int = 1,
    seed: int = 0,
    skill: float = 0.3,
    track: str = "matched",
    turns: int = 5,
    arm: str = "agent",
) -> Path:
    """Write an evaluation folder.

    Args:
        root: new folder.
        skill: shifts pass rate and speed-ups.
        turns: of each trajectory.
    """
    draw = random.Random(seed)
    settings = EvalSettings(
        taskset="synthetic",
        taskset_hash="0" * 12,
        policy=f"synthetic-{seed}",
        arm=Arm(arm),
        samples=samples,
        track=track,
        device="cuda",
        device_name=DEVICE,
        versions=_VERSIONS,
        started="2000-01-01T00:00:00Z",
        command="synthetic: made by a test, measured nowhere",
    )
    folder = EvalFolder.create(root, settings)
    tasks = [_task(i, num_tasks, random.Random(f"task {i}")) for i in range(num_tasks)]
    for task in tasks:
        folder.add_task(task)
        where = folder.task_folder(task.id)
        where.mkdir(parents=True)
        (where / "model.py").write_text(_reference(task.name))
    lines = []
    for task in tasks:
        for sample in range(samples):
            line = _attempt(task, sample, draw, skill=skill, track=track, turns=turns)
            lines.append(attempt_line(line))
            _run_folder(folder.attempt_folder(task.id, sample), task, line, turns)
    folder.attempts_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def _task(i: int, num_tasks: int, draw: random.Random) -> EvalTask:
    level = 1 + min(2, i * 3 // num_tasks)
    op = f"{draw.choice(_OPS)}_{i}" if i else f"{HOSTILE[:40]}_0"
    eager = draw.lognormvariate(5.5 + level / 2, 1.1)
    compiled = eager * draw.uniform(0.5, 1.02)
    measured: dict[str, Any] = {
        "eager_us": eager,
        "compile_us": compiled,
        "max_autotune_us": compiled * draw.uniform(0.75, 1.0),
        "cuda_graph_us": eager * draw.uniform(0.9, 1.0),
        "settings_only_us": compiled * draw.uniform(0.35, 1.0),
        "settings_only_name": draw.choice(["compile with TF32", "compile with float16 autocast"]),
        "eager_kernel_us": eager * 0.93,
        "compile_kernel_us": compiled * 0.94,
        "floor_us": compiled * draw.uniform(0.2, 0.95),
    }
    flags = {n: draw.random() < 0.05 for n in ("zeros", "mean", "stale", "other_weights", "identity")}
    return EvalTask(
        id=f"level{level}/{i + 1}",
        level=level,
        problem_id=i + 1,
        name=op,
        task_hash=f"{i:012x}",
        ops=(op.lower(),),
        degenerate=flags if i % 7 else None,
        baselines=measured if i % 11 else None,
    )


def _attempt(
    task: EvalTask, sample: int, draw: random.Random, *, skill: float, track: str, turns: int
) -> EvalAttempt:
    infrastructure = "the worker was lost" if draw.random() < 0.03 else None
    best = None if infrastructure else _verdict(task, draw, skill, track)
    last = best if draw.random() < 0.8 or best is None else _broken(task, track)
    return EvalAttempt(
        id=task.id,
        sample=sample,
        ending=Ending.SANDBOX_ERROR if infrastructure else draw.choice([Ending.FINISHED, Ending.TURN_LIMIT]),
        best=best,
        last=last,
        judge_calls=draw.randint(1, 20),
        turns=turns,
        prompt_tokens=draw.randint(10_000, 200_000),
        completion_tokens=draw.randint(1_000, 30_000),
        seconds=draw.uniform(30, 900),
        cost_usd=None if draw.random() < 0.2 else draw.uniform(0.01, 2.0),
        infrastructure=infrastructure,
    )


def _broken(task: EvalTask, track: str) -> Result:
    """The agent went on after its best version, and left a wrong one."""
    facts: dict[str, Any] = {"track": track, "device": DEVICE, "versions": _VERSIONS}
    return Result(stage=Stage.VERIFY, compiled=True, correct=False, reward=-1, candidate_hash="dead", **facts)


def _verdict(task: EvalTask, draw: random.Random, skill: float, track: str) -> Result:
    facts: dict[str, Any] = {
        "track": track,
        "device": DEVICE,
        "versions": _VERSIONS,
        "task_hash": task.task_hash,
    }
    chance = draw.random() - skill
    if chance > 0.62:
        return Result(stage=Stage.BUILD, correct=False, reward=-1, detail="no candidate was written", **facts)
    facts["candidate_hash"] = "feed"
    if chance > 0.55:
        broken = (Violation(ViolationKind.TORCH_COMPUTE, "aten::mm ran in forward"),)
        return Result(stage=Stage.VERIFY, compiled=True, correct=False, reward=-1, violations=broken, **facts)
    if chance > 0.4:
        fault = draw.choice([None, Fault.ILLEGAL_ACCESS, Fault.TIME_OUT])
        return Result(
            stage=Stage.VERIFY,
            compiled=True,
            correct=False,
            reward=-1,
            fault=fault,
            detail=f"wrong values {HOSTILE}",
            **facts,
        )
    eager = (task.baselines or {}).get("eager_us", 500.0)
    compiled = (task.baselines or {}).get("compile_us", 400.0)
    floor = (task.baselines or {}).get("floor_us", 0.0) * 1.05
    speed = draw.lognormvariate(skill, 0.4)
    times = {"eager_us": eager, "compile_us": compiled, "candidate_us": max(compiled / speed, floor)}
    samples = {n: Times.of([t * draw.uniform(0.97, 1.05) for _ in range(30)]) for n, t in times.items()}
    ratio = {n: samples[f"{n}_us"].median / samples["candidate_us"].median for n in ("eager", "compile")}
    saved = {n: 1 - 1 / r for n, r in ratio.items()}
    reward = 1 + (saved["eager"] > 0.05) + (saved["eager"] > 0.05 and saved["compile"] > 0.05)
    return Result(
        stage=Stage.DONE,
        compiled=True,
        correct=True,
        reward=reward,
        kernel_us=Times.of([t * 0.95 for t in samples["candidate_us"].samples]),
        confidence={n: [r * 0.97, r * 1.03] for n, r in ratio.items()},
        notes=("synthetic",),
        **samples,
        **facts,
    )


def _reference(name: str) -> str:
    head = f'"""Synthetic {name}."""\nimport torch\n\n\nclass Model(torch.nn.Module):\n'
    return head + "    def forward(self, x):\n        return x * 2\n"


def _run_folder(folder: Path, task: EvalTask, line: EvalAttempt, turns: int) -> None:
    (folder / "candidate" / "kernels").mkdir(parents=True)
    (folder / "candidate" / "model_new.py").write_text(f"# {HOSTILE}\nclass ModelNew: ...\n")
    (folder / "candidate" / "kernels" / "k.cu").write_text(
        f"// {HOSTILE}\n__global__ void k(float* x) {{}}\n" * 20
    )
    header = Header(task.task_hash, "synthetic", "cuda", "matched", "system text", "make it fast")
    # Not by TrajectoryWriter, whose fsync after each turn would cost seconds.
    _write_trajectory(folder / "trajectory.jsonl", header, line, turns)


def _write_trajectory(path: Path, header: Header, line: EvalAttempt, turns: int) -> None:
    records: list[dict[str, Any]] = [{"type": "header", **dataclasses.asdict(header)}]
    words = random.Random(str(path.parent.name) + header.task_hash)
    for i in range(turns):
        turn = Turn(
            index=i,
            text=f"I will vectorise the loads, step {i}. {HOSTILE}",
            calls=(ToolCall(f"c{i}", "bash", {"command": f"bash utils/compile.sh # {HOSTILE}"}),),
            observations=(Observation(f"c{i}", _output(words) + HOSTILE, is_error=i == 1, seconds=2.1),),
            usage=Usage(1000 * i, 200),
            seconds=7.5,
        )
        records.append({"type": "turn", **dataclasses.asdict(turn)})
    records.append({"type": "end", "ending": str(line.ending), "detail": ""})
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def _output(words: random.Random) -> str:
    """About 3 kB that compress no better than what a compiler or a profiler prints."""
    return "".join(
        f"kernel_{words.randrange(99)}: {words.uniform(1, 999):.3f} us of {words.randrange(9999)}\n"
        for _ in range(100)
    )
