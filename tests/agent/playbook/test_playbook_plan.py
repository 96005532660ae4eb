"""What the planner fuses, and what the playbook refuses with which reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playbook_modules import HEAD, MODULES, captured, kernels, module

from cuda_agent.agent.playbook.candidate import make_candidate
from cuda_agent.agent.playbook.capture import Refused
from cuda_agent.agent.playbook.ir import Unsupported
from cuda_agent.agent.playbook.kernel import Kernel, Mode
from cuda_agent.agent.playbook.lower import lower
from cuda_agent.agent.playbook.plan import GemmStep, Plan, plan
from cuda_agent.agent.playbook.rewrite import split_long_reductions


def plan_of(source: str, folder: Path) -> Plan:
    return plan(lower(captured(source, folder).cases[0]))


@pytest.mark.parametrize(
    "name",
    [
        "fused_chain",
        "softmax_odd",
        "layer_norm_gelu",
        "two_outputs",
        "batch_norm",
        "group_norm",
        "over_dim_1",
    ],
)
def test_one_pass_over_memory_is_one_kernel(name: str, tmp_path: Path) -> None:
    steps = plan_of(MODULES[name], tmp_path).steps
    kernels_over_everything = [s for s in steps if isinstance(s, Kernel)]
    # The full mean of two_outputs is a second kernel: its rows are not the first one's.
    assert len(kernels_over_everything) == (2 if name == "two_outputs" else 1)


def test_linear_is_a_product_and_one_kernel_for_everything_after(tmp_path: Path) -> None:
    first, second = plan_of(MODULES["linear_softmax"], tmp_path).steps
    assert isinstance(first, GemmStep) and (first.m, first.n, first.k) == (100, 57, 100)
    assert first.b.strides == (0, 1, 100), "the weight is read where it lies, transposed"
    assert isinstance(second, Kernel) and second.mode is Mode.ROW and second.stages == 2


def test_reading_a_tensor_once_for_two_outputs(tmp_path: Path) -> None:
    [kernel] = plan_of(module("", "return x.sum(-1), x * 2", "torch.randn(5, 9)"), tmp_path).steps
    assert isinstance(kernel, Kernel)
    assert [n.buffer for n in kernel.nodes if n.op == "load"] == ["x"] and len(kernel.stores) == 2


def test_an_order_that_loops_cannot_walk_is_written_once(tmp_path: Path) -> None:
    source = module(
        "", "return torch.softmax(x.transpose(1, 2).reshape(4, -1) + 1, -1)", "torch.randn(4, 10, 6)"
    )
    copy, softmax = plan_of(source, tmp_path).steps
    assert isinstance(copy, Kernel) and copy.mode is Mode.POINTWISE and copy.loads == {"x"}
    assert isinstance(softmax, Kernel) and softmax.stages == 2


def test_long_reductions_are_split_without_a_copy(tmp_path: Path) -> None:
    program = split_long_reductions(lower(captured(MODULES["full_reductions"], tmp_path).cases[0]))
    steps = [s for s in plan(program).steps if isinstance(s, Kernel)]
    assert max(s.rows for s in steps if "x" in s.loads) >= 250
    assert all(s.numel <= 4096 for s in steps if "x" not in s.loads)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.cumsum(x, -1)", "cumsum"),
        ("return torch.sort(x, -1)[0]", "sort"),
        ("return x.double()", "float64"),
        ("x.add_(1)\nreturn x", "writes to its"),
        ("return x if x.sum() > 0 else -x", "trace"),
    ],
)
def test_refusals_name_the_cause(forward: str, reason: str, tmp_path: Path) -> None:
    source = module("", forward, "torch.randn(4, 6)")
    with pytest.raises((Unsupported, Refused), match=reason):
        make_candidate(captured(source, tmp_path), source, kernels("cpu"))


def test_huge_inputs_are_never_allocated(tmp_path: Path) -> None:
    source = module("", "return torch.relu(x)", "torch.rand(1 << 22, 1 << 18)")
    graph = captured(source, tmp_path)
    assert graph.cases[0].inputs[0].shape == (1 << 22, 1 << 18)
    text = make_candidate(graph, source, kernels("cuda")).kernel_source()
    assert "const int64_t first" in text, "more than 2^31 elements need 64-bit indices"


def test_no_parameter_value_reaches_a_kernel(tmp_path: Path) -> None:
    source = module(
        "self.w = nn.Parameter(torch.full((6,), 1.2345))", "return x * self.w", "torch.randn(4, 6)"
    )
    text = make_candidate(captured(source, tmp_path), source, kernels("cpu")).kernel_source()
    assert "1.2345" not in text


def test_model_new_keeps_the_constructor_and_drops_the_rest(tmp_path: Path) -> None:
    source = (
        HEAD
        + """from math import sqrt
def helper(n):
    return int(sqrt(n))
def unused():
    return 1
class Model(nn.Module):
    def __init__(self, n):
        super(Model, self).__init__()
        self.l = nn.Linear(n, helper(n))
        self._reset()
    def _reset(self):
        nn.init.zeros_(self.l.bias)
    def _only_forward(self, x):
        return self.l(x)
    def forward(this, x):
        return this._only_forward(x)
batch = 3
def get_inputs():
    return [torch.randn(batch, 16)]
def get_init_inputs():
    return [16]
"""
    )
    text = make_candidate(captured(source, tmp_path), source, kernels("cpu")).model_source()
    assert "def helper" in text and "_reset" in text and "super(ModelNew, self)" in text
    assert not any(name in text for name in ("unused", "_only_forward", "get_inputs", "batch"))


def test_a_constructor_that_reads_files_becomes_registration_by_name(tmp_path: Path) -> None:
    source = (
        HEAD
        + """from pathlib import Path
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        p = Path(__file__).with_name("w.pt")
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.load(p)["weight"])
    def forward(self, x):
        return x * self.inner.weight
def get_inputs():
    return [torch.randn(4, 6)]
def get_init_inputs():
    return []
"""
    )
    torch.save({"weight": torch.ones(6)}, tmp_path / "w.pt")
    text = make_candidate(captured(source, tmp_path), source, kernels("cpu")).model_source()
    assert "'inner.weight', (6,)" in text and "torch.load" not in text
