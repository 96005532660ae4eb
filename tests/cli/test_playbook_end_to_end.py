"""From module to loaded result with the playbook: command line and API, on modules it has not seen."""

import warnings

import pytest
import torch
from torch import nn

import cuda_agent
from cuda_agent.config import Device, JudgeConfig
from cuda_agent.runs.optimization import optimize_task
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import verdict
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending

pytestmark = pytest.mark.slow

HEAD = """import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {args}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""

# One that has a chain, broadcasting, a buffer, two outputs and an odd width: each module costs about a
# minute, most of it torch.compile's. The playbook's own tests have the others.
MODULES = {
    "two_outputs_with_a_buffer": {
        "init": "self.register_buffer('mean', torch.randn(301)); self.s = nn.Parameter(torch.rand(301))",
        "args": "a, b",
        "forward": "z = torch.tanh(a - self.mean) * b * self.s; return z, torch.softmax(z, -1)",
        "inputs": "torch.randn(300, 301), torch.randn(300, 301)",
    },
}


def optimized(code, name, out):
    settings = OptimizeSettings(judge=JudgeConfig(device=Device.CPU, timing_budget_s=1.0))
    return optimize_task(Task(code=code, name=name), settings, out=out)


@pytest.mark.parametrize("name", MODULES)
def test_the_playbook_ends_verified_and_the_loaded_result_matches_eager(name, tmp_path):
    outcome = optimized(HEAD.format(**MODULES[name]), name, tmp_path / "out")
    assert verdict(outcome.result) == "verified", outcome.result
    assert outcome.ending is Ending.FINISHED
    module = cuda_agent.load(outcome.folder.root)
    space = {}
    exec(outcome.task.code, space)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            inputs = space["get_inputs"]()
            torch.testing.assert_close(module(*inputs), module.original(*inputs), rtol=1e-4, atol=1e-5)


def test_what_it_does_not_cover_is_refused_with_the_reason(tmp_path):
    code = HEAD.format(
        init="self.c = nn.Conv2d(3, 8, 3)",
        args="x",
        forward="return self.c(x).relu()",
        inputs="torch.randn(2, 3, 16, 16)",
    )
    outcome = optimized(code, "convolution", tmp_path / "out")
    assert verdict(outcome.result) == "no candidate"
    assert "conv" in outcome.result.detail.lower()


def test_the_api_returns_a_module_that_runs_the_kernels(tmp_path):
    """An nn.Sequential: its source cannot rebuild it, so its exported program is the reference."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.LayerNorm(192), nn.GELU())
    with torch.no_grad():
        module[0].weight.uniform_(0.5, 1.5)
    fast = cuda_agent.optimize(module, (torch.randn(256, 192) * 2 + 1,), out=tmp_path / "out")
    assert fast.result.correct, fast.result.detail
    assert list(fast.state_dict()) == list(module.state_dict())
    assert fast.training
    fast.eval()
    x = torch.randn(256, 192)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
        fast.load_state_dict({"0.weight": torch.full((192,), 2.0), "0.bias": torch.ones(192)})
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
    with pytest.warns(RuntimeWarning, match="gradient"):
        fast(x).sum().backward()
    assert module[0].weight.grad is not None
    # The finished folder stands for itself: weights and all.
    loaded = cuda_agent.load(tmp_path / "out")
    assert list(loaded.state_dict()) == list(module.state_dict())
