"""Baselines of a taskset: figures by hand; real tasks, one that dies and one that does not import."""

from __future__ import annotations

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Device, JudgeConfig, Precision, Track
from cuda_agent.judge.baseline_cache import SetCache
from cuda_agent.judge.baseline_forms import Cast, CastModel, compare
from cuda_agent.judge.baseline_lines import LineTimes, TaskBaselines, Work
from cuda_agent.judge.baseline_memory import BASE_BYTES, MemoryBudget
from cuda_agent.judge.baseline_names import Line, Pass, groups_of
from cuda_agent.judge.baseline_work import count_work, roofline
from cuda_agent.task import Task

FACTS = DeviceFacts("cuda", "GPU", "sm_90", 132, 1 << 37, 50 << 20, 4e12, 60e12, "1")


def times(us: float, **more) -> LineTimes:
    return LineTimes(samples=((us, us, us),), weights=(1.0,), **more)


def test_settings_only_is_the_fastest_valid_one_once_all_were_tried():
    lines = {
        Line.EAGER: times(100.0),
        Line.COMPILE: times(50.0),
        Line.COMPILE_TF32: times(80.0, valid=True),
        Line.COMPILE_FP16: times(20.0, valid=False),
    }
    assert TaskBaselines("cuda", lines).settings_only() is None, "one setting was not tried"
    lines[Line.HALF] = LineTimes(why="no kernel for Half")
    known = TaskBaselines("cuda", lines)
    assert known.settings_only() == (80.0, Line.COMPILE_TF32)
    flat = known.flat()
    assert (flat["settings_only_us"], flat["settings_only_name"]) == (80.0, "compile_tf32")
    assert flat["max_autotune_us"] is None and flat["cuda_graph_us"] is None and flat["floor_us"] is None
    assert flat["why"] == {"half_compile": "no kernel for Half"}
    assert flat["valid"] == {"compile_tf32": True, "compile_fp16_autocast": False}
    on_cpu = {Line.COMPILE_BF16: times(90.0, valid=True), Line.HALF: LineTimes(why="none")}
    both = TaskBaselines("cpu", {**lines, **on_cpu})
    assert both.settings_only() == (50.0, Line.COMPILE), "there torch.compile stands where TF32 would"


def test_a_line_over_several_cases_is_weighted():
    line = LineTimes(samples=((10.0, 12.0), (100.0, 104.0)), weights=(0.75, 0.25))
    assert line.times is not None
    assert line.times.samples == (0.75 * 10 + 25, 0.75 * 12 + 26)
    assert LineTimes(samples=((1.0,), ())).times is None
    assert len(times(1.0).thinned().samples[0]) == 3
    assert len(LineTimes(samples=(tuple(range(1, 1001)),)).thinned().samples[0]) == 100


def test_what_is_measured_together():
    assert groups_of(Pass.FIRST, "cuda") == ((Line.EAGER, Line.COMPILE, Line.CUDA_GRAPH),)
    assert groups_of(Pass.FIRST, "cpu") == ((Line.EAGER, Line.COMPILE),)
    assert groups_of(Pass.ALL, "cuda")[1:] == groups_of(Pass.SECOND, "cuda")
    assert (Line.COMPILE_TF32,) in groups_of(Pass.SECOND, "cuda")
    assert groups_of(Pass.SECOND, "cuda")[-1] == (Line.EAGER_KERNEL, Line.COMPILE_KERNEL)
    assert all(Line.COMPILE_TF32 not in group for group in groups_of(Pass.ALL, "cpu"))


def test_work_of_a_linear_layer_and_of_a_convolution():
    x = torch.randn(8, 64)
    found = count_work(torch.nn.Linear(64, 32), [x])
    assert found["matmul_flops"] == 2 * 8 * 64 * 32 and found["conv_flops"] == 0
    assert found["num_bytes"] == 4 * (8 * 64 + 64 * 32 + 32 + 8 * 32)
    conv = count_work(torch.nn.Conv2d(3, 5, 3, bias=False), [torch.randn(2, 3, 10, 10)])
    assert conv["conv_flops"] == 2 * 2 * 5 * 8 * 8 * 27 and conv["matmul_flops"] == 0


class _Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class _First(_Calls):
    def forward(self, x):
        return self.function(x)[0]


def test_work_of_a_recurrent_layer():
    """Four gates of 4 units over 5 features and 4 states, at 7 steps of 3 sequences."""
    expected = 2 * (7 * 3) * (4 * 4) * (5 + 4)
    lstm = torch.nn.LSTM(5, 4)
    assert count_work(_First(lstm), [torch.randn(7, 3, 5)])["conv_flops"] == expected
    x, state = torch.empty(7, 3, 5, device="meta"), torch.empty(1, 3, 4, device="meta")
    weights = list(lstm.to("meta").parameters())

    def cudnn(x):
        settings = (2, 4, 0, 1, False, 0.0, False, False, [], None)  # an LSTM of one layer, one way
        return torch.ops.aten._cudnn_rnn(x, weights, 4, None, state, state, *settings)[0]

    assert count_work(_Calls(cudnn), [x])["conv_flops"] == expected


def test_the_roofline_by_hand():
    """4 MB at 4 TB/s is 1 us; 600 MFLOP of products at 60 TFLOP/s is 10 us, of convolutions in TF32 less."""
    counts = [{"num_bytes": 4e6, "matmul_flops": 600e6, "conv_flops": 0.0}]
    work = roofline(counts, [1.0], facts=FACTS, precision=Precision.DEFAULT, tf32_flops=300e12)
    assert work == Work(4e6, 600e6, 0.0, 10.0, 1.0, 10.0)
    work = roofline(counts, [1.0], facts=FACTS, precision=Precision.TF32, tf32_flops=300e12)
    assert work is not None and work.floor_us == 2.0
    conv = {"num_bytes": 8e6, "matmul_flops": 0.0, "conv_flops": 600e6}
    both = roofline([*counts, conv], [0.5, 0.5], facts=FACTS, precision=Precision.DEFAULT, tf32_flops=300e12)
    assert both is not None and both.floor_us == pytest.approx(0.5 * 10.0 + 0.5 * 2.0)
    unknown = DeviceFacts("cuda", "GPU", "sm_90", 1, 1)
    assert roofline(counts, [1.0], facts=unknown, precision=Precision.DEFAULT, tf32_flops=None) is None


def test_agreement_at_one_in_a_hundred():
    expected = [torch.tensor([1.0, 100.0, math.inf, math.nan]), torch.tensor([3])]
    assert compare([expected[0].clone(), torch.tensor([3])], expected) == 0.0
    shifted = expected[0] + torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert compare([shifted, torch.tensor([3])], expected) == pytest.approx(1.0 / 1.01)
    for wrong in (
        [expected[0].half(), expected[1]],
        [torch.tensor([1.0, 100.0, 1.0, math.nan]), expected[1]],
        [torch.tensor([1.0, math.nan, math.inf, math.nan]), expected[1]],
        [expected[0], torch.tensor([4])],
        [expected[0]],
    ):
        assert compare(wrong, expected) == math.inf


def test_forms_give_back_the_dtypes_of_eager():
    model = torch.nn.Linear(16, 4).requires_grad_(False)
    x = torch.randn(8, 16)
    for form in (
        Cast(model, "cpu", torch.bfloat16, like=model(x)),
        CastModel(model, torch.bfloat16, like=model(x)),
    ):
        out = form(x)
        assert out.dtype is torch.float32
        assert 0.0 < compare(out, model(x)) < 5.0, "the product itself was rounded"
    assert next(model.parameters()).dtype is torch.float32


def cache(**more) -> SetCache:
    setting = {"kind": "cuda", "device_name": "GPU", "versions": {"torch": "1"}, "num_threads": 4, **more}
    return SetCache(setting.pop("config", JudgeConfig(device=Device.CUDA)), **setting)


def test_the_cache_keeps_contracts_and_devices_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    cache().add("task", {Line.EAGER: times(1.0)}, work=Work(1, 2, 3, 4, 5, 6))
    known = cache().add("task", {Line.MAX_AUTOTUNE: LineTimes(why="too slow")})
    assert cache().get("task") == known
    assert known.work is not None and known.time_us(Line.EAGER) == 1.0
    for other in (
        cache(device_name="other"),
        cache(versions={"torch": "2"}),
        cache(num_threads=8),
        cache(config=JudgeConfig(device=Device.CUDA, precision=Precision.FP32)),
    ):
        assert other.get("task").lines == {}
    paper = cache(config=JudgeConfig(device=Device.CUDA, track=Track.PAPER))
    assert paper.get("task") == known, "the paper's track has PyTorch's defaults too"
    assert cache(versions={"torch": "1", "cuda_agent": "9"}).get("task") == known
    [path] = (tmp_path / "taskset-baselines").glob("*.json")
    path.write_text(path.read_text()[:-20])
    assert cache().get("task").lines == {}


def test_memory_is_handed_out_in_order_and_never_twice():
    budget = MemoryBudget(10 * BASE_BYTES)
    held: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def work(number):
        with budget.hold(BASE_BYTES if number else 100 * BASE_BYTES):  # 5 shares of 10, or all
            with lock:
                held.append(number)
                most.append(len(held))
                assert len(held) == 1 or 0 not in held, "who needs all is alone"
            time.sleep(0.01)
            with lock:
                held.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [number % 4 for number in range(40)]))
    assert max(most) == 2


GOOD = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2


CASE_WEIGHTS = [3, 1]


def get_inputs(case=0):
    return [torch.randn(256 << case, 64)]


def get_init_inputs():
    return []
"""
DIES = GOOD.replace("return torch.relu", "import os; os.kill(os.getpid(), 11); return torch.relu")
BROKEN = GOOD.replace("import torch\n", "import torch, absent_package\n", 1)
# Its process dies while it is compiled: eager is measured all the same, in another.
UNCOMPILED = (
    GOOD + "\n\ndef die(*_, **__):\n    import os\n    os.kill(os.getpid(), 11)\n\n\ntorch.compile = die\n"
)


@dataclass(frozen=True)
class Entry:
    id: str
    task: Task
    level: int | None = None
    problem_id: int | None = None


@pytest.mark.slow
def test_a_taskset_with_tasks_that_fail(tmp_path, monkeypatch):
    from cuda_agent.evals.baseline_rows import Baselines, summary, table_row

    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    codes = {"good": GOOD, "dies": DIES, "broken": BROKEN, "uncompiled": UNCOMPILED}
    entries = [Entry(name, Task(code=code, name=name)) for name, code in codes.items()]
    work = Baselines(entries, JudgeConfig(device=Device.CPU))
    said: list[str] = []

    def measure(which):
        return list(work.measure(which, fresh=False, jobs=2, compile_limit_s=300.0, say=said.append))

    lines = measure(Pass.FIRST)
    assert len(lines) == 4
    rows = {row.id: row for row in work.rows()}
    good = rows["good"].baselines
    assert good.time_us(Line.EAGER) > 0 and good.time_us(Line.COMPILE) > 0
    assert len(good.lines[Line.EAGER].samples) == 2
    assert good.lines[Line.COMPILE].compile_s > 0
    assert good.work.matmul_flops == 2 * 64 * 64 * (0.75 * 256 + 0.25 * 512)
    assert 0 < good.work.floor_us < good.time_us(Line.EAGER)
    for name, words in (("dies", "SIGSEGV"), ("broken", "absent_package")):
        known = rows[name].baselines
        assert known.time_us(Line.EAGER) is None
        assert words in known.lines[Line.EAGER].why and words in known.lines[Line.COMPILE].why
    uncompiled = rows["uncompiled"].baselines
    assert uncompiled.time_us(Line.EAGER) > 0 and uncompiled.time_us(Line.COMPILE) is None
    assert "SIGSEGV" in uncompiled.lines[Line.COMPILE].why
    assert said == ["once more, each alone: uncompiled"]
    assert json.loads(json.dumps(rows["dies"].to_dict(), allow_nan=False))["baselines"]["eager_us"] is None
    assert table_row(rows["dies"])[:3] == ("dies", "-", "-")
    assert "4 tasks, eager of 2, torch.compile of 1" in summary(list(rows.values()))[0]
    assert all("known: " in line for line in measure(Pass.FIRST)), "nothing is measured twice"
