"""Admission on hand-made tasks: real reference runner, on the CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge.admission import Admission, Protocol, TrivialAnswer, admit
from cuda_agent.task import Task

CONFIG = JudgeConfig(device=Device.CPU)
DRAWS, STRICT, JUDGE = Protocol.KERNELBENCH, Protocol.KERNELBENCH_STRICT, Protocol.JUDGE
ZEROS, MEAN, STALE, OTHER, IDENTITY = TrivialAnswer


def task(forward: str, *, init: str = "pass", inputs: str = "torch.rand(4, 64)", more: str = "") -> Task:
    code = f"""
import os, time
import torch
from torch import nn
{more}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, *x):
        {forward}
def get_inputs(case=0): return [{inputs}]
def get_init_inputs(): return []
"""
    return Task(code=code)


def passing(admission: Admission) -> dict[Protocol, set[TrivialAnswer]]:
    return {p: {a for a, passes in admission.under(p).items() if passes} for p in admission.trials}


def test_nothing_passes_on_a_sound_task_and_one_check_is_enough() -> None:
    sound = task("return self.f(x[0])", init="self.f = nn.Linear(64, 64)", inputs="torch.randn(4, 64)")
    admission = admit(sound, CONFIG)
    assert passing(admission) == {DRAWS: set(), STRICT: set(), JUDGE: set()}
    assert set(admission.passes.values()) == {False}
    assert (admission.degenerate, admission.reason, admission.checks) == (False, "", ("draw 1",))
    assert admission.inputs == ("float32[4,64]",)
    margins = [trial.margin for trial in admission.trials[JUDGE].values()]
    assert all(margin is not None and margin > 100 for margin in margins)
    assert Admission.from_dict(json.loads(json.dumps(admission.to_dict()))) == admission


@pytest.mark.parametrize(
    ("degenerate", "expected"),
    [
        # Never above 2: zeros, until the judge scales the input up.
        (task("return torch.relu(x[0] - 2)"), ({ZEROS, MEAN, STALE}, {ZEROS, MEAN, STALE}, set())),
        # Constant to 1e-3.
        pytest.param(task("return 3 + 1e-3 * x[0]"), ({MEAN, STALE}, set(), set()), marks=pytest.mark.slow),
        # Weights only: no protocol can tell.
        (
            task("return self.w + 0 * x[0]", init="self.w = nn.Parameter(torch.randn(4, 64))"),
            ({STALE}, {STALE}, {STALE}),
        ),
        # Gains of one: no other initialisation, until the judge perturbs them.
        (task("return self.f(x[0])", init="self.f = nn.LayerNorm(64)"), ({OTHER}, {OTHER}, set())),
        # Inputs that are never negative; the judge flips signs.
        (task("return torch.relu(x[0])[None]"), ({IDENTITY}, {IDENTITY}, set())),
        # Two outputs, both the input; a single different one would be enough to refuse it.
        pytest.param(
            task("return x[0].flatten(), x[0].T"),
            ({IDENTITY}, {IDENTITY}, {IDENTITY}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["zeros", "mean", "stale", "other_weights", "identity", "identity_of_all"],
)
def test_each_trivial_answer_is_found(degenerate: Task, expected: tuple[set[TrivialAnswer], ...]) -> None:
    admission = admit(degenerate, CONFIG)
    assert passing(admission) == dict(zip((DRAWS, STRICT, JUDGE), expected, strict=True))
    assert admission.degenerate is bool(expected[2])
    assert admission.reason == ""


@pytest.mark.slow
def test_derived_inputs_that_are_not_in_the_domain_are_dropped() -> None:
    picky = task("assert (x[0] >= 0).all(); return torch.sqrt(0.5 - x[0] * 0.4) * 0 + x[0].abs()")
    admission = admit(picky, CONFIG)
    assert {"sign_flip", "scale_up"} <= set(admission.dropped)
    assert "scale_down" in admission.checks
    assert passing(admission)[JUDGE] == {IDENTITY}
    assert admission.reason == ""


@pytest.mark.slow
def test_a_case_of_several_is_enough_to_refuse() -> None:
    cases = task(
        "return torch.relu(x[0])",
        inputs="torch.rand(8, 16) if case == 0 else torch.randn(3, 5)",
        more="CASE_WEIGHTS = [1.0, 1.0]",
    )
    admission = admit(cases, CONFIG)
    assert passing(admission) == {DRAWS: set(), STRICT: set(), JUDGE: set()}
    assert admission.trials[JUDGE][IDENTITY].check == "draw 2"


@pytest.mark.parametrize(
    ("untried", "why"),
    [
        (task("return x[0]", inputs="torch.rand(1 << 40)"), "too large"),
        pytest.param(task("return x[0] + torch.rand(64)"), "random", marks=pytest.mark.slow),
        pytest.param(
            task("return x[0] + torch.ones(1 << 45)[:64]"), "allocate memory", marks=pytest.mark.slow
        ),
        pytest.param(task("os._exit(3)"), "process", marks=pytest.mark.slow),
    ],
    ids=["large_inputs", "random", "large_inside", "exits"],
)
def test_what_cannot_be_tried_says_why(untried: Task, why: str) -> None:
    admission = admit(untried, CONFIG)
    assert why in admission.reason
    assert set(admission.passes.values()) == {None}
    assert not admission.degenerate


def test_a_task_that_hangs_costs_its_limit_and_is_gone() -> None:
    start = time.monotonic()
    admission = admit(task("while True: time.sleep(1)"), CONFIG, limit_s=2.0)
    assert "2 s" in admission.reason
    assert set(admission.passes.values()) == {None}
    assert time.monotonic() - start < 60
    assert not _children_that_run("reference_worker.py")


@pytest.mark.slow
def test_what_was_refused_before_the_time_ran_out_stays_refused() -> None:
    slow = task(
        "time.sleep(0.3); return torch.relu(x[0])", init="self.calls = 0"
    )  # identity goes on to the later draws
    admission = admit(slow, CONFIG, limit_s=1.6)
    assert "out of time" in admission.reason
    assert admission.under(DRAWS)[ZEROS] is False
    assert admission.under(DRAWS)[IDENTITY] is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu() -> None:
    gpu = JudgeConfig(device=Device.CUDA)
    relu = admit(task("return torch.relu(x[0])", inputs="torch.rand(4096, 4096)"), gpu)
    assert passing(relu) == {DRAWS: {IDENTITY}, STRICT: {IDENTITY}, JUDGE: set()}
    large = admit(task("return x[0].exp()", inputs="torch.rand(1 << 18, 1 << 18)"), gpu)
    assert "large" in large.reason
    weights = task("return self.w + 0 * x[0]", init="self.w = nn.Parameter(torch.randn(4, 64))")
    assert passing(admit(weights, gpu))[JUDGE] == {STALE}


def _children_that_run(script: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode().replace("\0", " ")
            parent = (path.parent / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if script in command and parent == str(Path("/proc/self").resolve().name):
            found.append(command)
    return found
