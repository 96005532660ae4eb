"""The filters on planted defects: each is refused by the predicate that is there for it, in a real worker."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cuda_agent.synthesis.filters.client import Client, TaskFailed
from cuda_agent.synthesis.filters.predicates import PREDICATES, Cost
from cuda_agent.synthesis.filters.runner import Outcome, Runner
from cuda_agent.synthesis.record import Size, TaskRecord
from cuda_agent.synthesis.target import CPU, Compile, Target

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F
{head}

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        {init}

    def forward(self, x{more}):
        {body}


batch_size = 4
features = 32


def get_inputs():
    return [torch.randn(batch_size, features){draw}]


def get_init_inputs():
    return [features]
"""


def record(
    body: str,
    ops: tuple[str, ...] = ("nn.Linear",),
    *,
    init: str = "pass",
    head: str = "",
    more: str = "",
    draw: str = "",
) -> TaskRecord:
    """A task with a linear layer and what a case adds to it."""
    code = TASK.format(body=body.replace("\n", "\n        "), init=init, head=head, more=more, draw=draw)
    return TaskRecord(code, ops, f"torch#{len(ops)}", sizes={"batch_size": Size(4, 4)})


GOOD = record("return F.gelu(self.linear(x))", ("nn.Linear", "F.gelu"))
SECOND = {"more": ", y", "draw": ", torch.randn(batch_size, features)"}

DEFECTS = {
    "parses": replace(GOOD, code="class Model: pass"),
    "self-contained": record("return self.linear(x)", head="import numpy"),
    "few-ops": record("return self.linear(x)", ("torch.exp",) * 6),
    "runs-abstract": record("return self.linear(x.t())"),
    "memory": replace(GOOD, code=GOOD.code.replace("batch_size = 4", "batch_size = 40000000")),
    "ops-execute": record("return self.linear(x)", ("nn.Linear", "nn.Conv2d")),
    "ops-execute ": record("torch.exp(x)\nreturn self.linear(x)", ("nn.Linear", "torch.exp")),
    "reads-inputs": record("return self.linear(x)", **SECOND),
    "not-random": record("return self.linear(x) + torch.randn_like(x)"),
    "one-mode": record("return self.drop(self.linear(x))", init="self.drop = nn.Dropout(0.5)"),
    "inputs-kept": record("return self.linear(x.mul_(2))"),
    "finite": record("return torch.log(self.linear(x))"),
    "not-constant": record("return self.linear(x) * 0 + 1"),
    "inputs-matter": record("return self.linear(x) + 1e-6 * y", **SECOND),
    "state-matters": record("return self.linear(x)", init="self.spare = nn.Parameter(torch.randn(features))"),
    "no-idle-op": record("return torch.relu(torch.sigmoid(self.linear(x)))"),
    "no-idle-op ": record("return self.linear(x).clamp(-50, 50)"),
    "no-idle-op  ": record("return torch.round(torch.floor(self.linear(x)))"),
    "admission-small": record(
        "return x.t().contiguous()", ("torch.t",), init="del self.linear"
    ),  # the input, transposed, is the answer
}


def runner(client: Client, target: Target = CPU, *, stop_after: Cost = Cost.SMALL) -> Runner:
    """Of the predicates up to a cost."""
    return Runner(client, client, target, alone=threading.Lock(), stop_after=stop_after)


def check(client: Client, task: TaskRecord, target: Target = CPU) -> Outcome:
    """The predicates that need no device."""
    return runner(client, target).check(task)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_refused_by_its_own_predicate(client: Client, name: str) -> None:
    outcome = check(client, DEFECTS[name])
    assert outcome.failed == name.strip(), outcome.detail


def test_each_predicate_that_needs_no_device_has_a_defect() -> None:
    assert {p.name for p in PREDICATES if p.cost <= Cost.SMALL} == {name.strip() for name in DEFECTS}


GOOD_ONES = {
    "chain": GOOD,
    "residual": record("return x + torch.tanh(self.linear(x))"),
    "two inputs": record("return torch.softmax(self.linear(x), -1) @ y.t()", **SECOND),
    "stated mode": replace(
        record("return self.norm(self.linear(x))", init="self.norm = nn.BatchNorm1d(features)"), by_mode=True
    ),
    "guarded root": record(
        "x = self.linear(x)\nreturn x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"
    ),
    "norm of ones": record("return self.norm(self.linear(x))", init="self.norm = nn.LayerNorm(features)"),
}


@pytest.mark.parametrize("name", GOOD_ONES)
def test_a_sound_task_passes(client: Client, name: str) -> None:
    outcome = check(client, GOOD_ONES[name])
    assert outcome.accepted, (outcome.failed, outcome.detail)


def test_a_parameter_that_algebra_makes_dead_is_listed_and_exempt(client: Client) -> None:
    task = record(
        "return self.norm(self.linear(x).unsqueeze(0).transpose(1, 2)).exp()",
        init="self.norm = nn.InstanceNorm1d(features)",
    )
    outcome = check(client, task)
    assert outcome.accepted, (outcome.failed, outcome.detail)
    assert outcome.record.facts["sensitivity"]["state"]["linear.bias"] < 1e-9
    verdict = next(p for p in PREDICATES if p.name == "state-matters").check(outcome.record, CPU)
    assert "linear.bias" in verdict.detail


def test_neighbours_that_commute_by_a_rule_are_exempt(client: Client) -> None:
    task = record(
        "return F.max_pool1d(torch.tanh(self.linear(x)), 2)", ("nn.Linear", "F.tanh", "F.max_pool1d")
    )
    outcome = check(client, task)
    assert outcome.accepted, (outcome.failed, outcome.detail)
    assert any("monotone" in line for line in outcome.record.facts["mutants"]["exempt"])


LOSSES = {
    "crash": "__import__('os').abort()",
    "hang": "while True:\n    pass",
    "exit": "__import__('os')._exit(0)",
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_task_that_takes_its_worker_down_costs_that_task_only(client: Client, name: str) -> None:
    bad = replace(GOOD, code=f"{LOSSES[name]}\n{GOOD.code}")
    before = client.num_lost
    impatient = replace(CPU, task_limit_s=3.0)
    client.open(GOOD.code, limit_s=60)  # the worker is up: its start is not the task's time
    outcome = check(client, bad, impatient)
    assert outcome.failed == "runs-abstract"
    assert "took its process down" in outcome.detail
    assert client.num_lost == before + 1
    assert check(client, GOOD).accepted


def test_a_task_that_wants_too_much_memory_costs_that_task_only(client: Client) -> None:
    greedy = record("return self.linear(x)", init="self.register_buffer('big', torch.zeros(1 << 38))")
    unbound = replace(CPU, max_bytes=1 << 50)
    outcome = check(client, greedy, unbound)
    assert not outcome.accepted
    assert check(client, GOOD).accepted


def test_time_is_brought_into_the_window_by_resizing(client: Client) -> None:
    target = replace(CPU, compile=Compile.CAPTURE)
    outcome = runner(client, target, stop_after=Cost.DEVICE).check(GOOD)
    assert outcome.accepted, (outcome.failed, outcome.detail)
    facts = outcome.record.facts
    assert 1e3 <= facts["eager"]["median_us"] <= 1e5
    assert facts["eager"]["resized"]
    assert outcome.record.sizes["batch_size"].shipped > 4
    assert f"batch_size = {outcome.record.sizes['batch_size'].shipped}\n" in outcome.record.code
    assert facts["abstract"]["inputs"] == [f"float32[{outcome.record.sizes['batch_size'].shipped},32]"]
    assert facts["compiled"]["agrees"]


def test_a_task_without_a_free_size_outside_the_window_is_given_up(client: Client) -> None:
    fixed = replace(GOOD, sizes={})
    target = replace(CPU, compile=Compile.CAPTURE)
    assert runner(client, target, stop_after=Cost.DEVICE).check(fixed).failed == "time-window"


def test_measuring_without_a_worker_says_so(client: Client) -> None:
    client.close()
    with pytest.raises(TaskFailed, match="lost"):
        client.measure("abstract", limit_s=1.0)
