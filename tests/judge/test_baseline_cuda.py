"""A taskset's baselines on a GPU: every line is measured, in its order; floors; cached."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge.baseline_names import Line, Pass, groups_of
from cuda_agent.task import Task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

LINEAR = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 4096)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2


def get_inputs():
    return [torch.rand(4096, 4096)]


def get_init_inputs():
    return []
"""
POINTWISE = LINEAR.replace("torch.relu(self.linear(x)) * 2", "torch.relu(x) * 2 + 1").replace(
    "self.linear = nn.Linear(4096, 4096)", "pass"
)
# A value on the host in the middle of forward: cannot be recorded in a graph.
NO_GRAPH = POINTWISE.replace("torch.relu(x) * 2 + 1", "x * (2 if float(x[0, 0]) >= 0 else 3)")
FAULT = POINTWISE.replace("torch.relu(x) * 2 + 1", "x[torch.tensor([1 << 20], device=x.device)]")


@dataclass(frozen=True)
class Entry:
    id: str
    task: Task
    level: int | None = None
    problem_id: int | None = None


def test_every_line_of_good_tasks_and_the_reasons_of_bad_ones(tmp_path, monkeypatch):
    from cuda_agent.evals.baseline_rows import Baselines

    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    codes = {"linear": LINEAR, "pointwise": POINTWISE, "no_graph": NO_GRAPH, "fault": FAULT}
    entries = [Entry(name, Task(code=code, name=name)) for name, code in codes.items()]
    work = Baselines(entries, JudgeConfig(device=Device.CUDA))
    options = {"fresh": False, "jobs": 4, "compile_limit_s": 300.0, "say": print}
    list(work.measure(Pass.ALL, **options))
    known = {row.id: row.baselines for row in work.rows()}

    every = [line for group in groups_of(Pass.ALL, "cuda") for line in group]
    for name in ("linear", "pointwise"):
        assert {line: known[name].lines[line].why for line in every} == dict.fromkeys(every, "")
        assert all(known[name].time_us(line) > 0 for line in every)
        assert known[name].settings_only() is not None
    linear, pointwise = known["linear"], known["pointwise"]
    assert linear.work.matmul_flops == 2 * 4096**3
    assert pointwise.work.floor_us == pointwise.work.bytes_us > 0
    assert pointwise.work.floor_us < 1.1 * pointwise.time_us(Line.COMPILE) < pointwise.time_us(Line.EAGER)
    assert linear.time_us(Line.COMPILE_FP16) < 0.7 * linear.time_us(Line.COMPILE), "half precision is fast"
    assert linear.settings_only()[1] is not Line.EAGER
    assert pointwise.time_us(Line.EAGER_KERNEL) <= 1.1 * pointwise.time_us(Line.EAGER)

    assert known["no_graph"].time_us(Line.EAGER) > 0
    assert known["no_graph"].lines[Line.CUDA_GRAPH].why
    assert known["fault"].time_us(Line.EAGER) is None and known["fault"].lines[Line.EAGER].why
    assert all("known: " in line for line in work.measure(Pass.FIRST, **options))
