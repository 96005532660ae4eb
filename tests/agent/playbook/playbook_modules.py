"""Modules the playbook covers, and a check of one: capture, plan, build, run, compare with eager.

As a command (no test runner needed, for a GPU machine):
``PYTHONPATH=src python tests/agent/playbook/playbook_modules.py cuda [NAME...]``.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cuda_agent.agent.playbook import capture
from cuda_agent.agent.playbook.backends import CpuKernels, CudaKernels, KernelBackend
from cuda_agent.agent.playbook.candidate import Candidate, make_candidate, variants
from cuda_agent.agent.playbook.graph import Captured, parse

HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"


def module(init: str, forward: str, inputs: str, args: str = "x") -> str:
    """Source of a task file from the statements of its parts."""
    body = "\n".join(f"        {line}" for line in forward.split("\n"))
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init or 'pass'}\n    def forward(self, {args}):\n{body}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )


MODULES = {
    "fused_chain": module(
        "self.s = 0.5",
        "y = F.gelu(x * self.s + 1.0)\nz = torch.tanh(y) * torch.sigmoid(x) + F.silu(y)\n"
        "return F.hardtanh(z - F.mish(x))",
        "torch.randn(64, 1030)",
    ),
    "softmax_odd": module("", "return torch.softmax(x, -1)", "torch.randn(77, 1001)"),
    "softmax_8189": module("", "return torch.softmax(x, -1)", "torch.randn(2048, 8189)"),
    "layer_norm_1027": module(
        "self.n = nn.LayerNorm(1027)", "return F.gelu(self.n(x))", "torch.randn(2051, 1027)"
    ),
    "float16_odd": module(
        "self.n = nn.LayerNorm(4099).half()",
        "return F.softmax(self.n(x), -1)",
        "torch.randn(515, 4099).half()",
    ),
    "bfloat16_odd_pointwise": module(
        "self.b = nn.Parameter(torch.randn(2055).bfloat16())",
        "return F.silu(x + self.b)",
        "torch.randn(1027, 2055).bfloat16()",
    ),
    "log_softmax_odd": module("", "return F.log_softmax(x * 0.7, dim=-1)", "torch.randn(513, 5003)"),
    "rms_odd": module(
        "self.w = nn.Parameter(torch.randn(4095))",
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w",
        "torch.randn(777, 4095)",
    ),
    "two_inputs_odd": module(
        "self.n = nn.LayerNorm(3001)",
        "h = x + y\nreturn h, self.n(h), h.amax(-1)",
        "torch.randn(515, 3001), torch.randn(515, 3001)",
        "x, y",
    ),
    "bias_odd": module(
        "self.b = nn.Parameter(torch.randn(4097)); self.s = nn.Parameter(torch.randn(7, 1, 1))",
        "return torch.tanh(x * self.s + self.b), x + 1",
        "torch.randn(7, 111, 4097)",
    ),
    "long_row_odd": module("", "return torch.softmax(x, -1)", "torch.randn(66, 50003)"),
    "layer_norm_gelu": module(
        "self.n = nn.LayerNorm(768)", "return F.gelu(self.n(x))", "torch.randn(2, 64, 768)"
    ),
    "linear_silu": module("self.l = nn.Linear(200, 96)", "return F.silu(self.l(x))", "torch.randn(70, 200)"),
    "two_outputs": module(
        "",
        "a = torch.relu(x) + y\nreturn {'a': a, 'b': [a.sum(-1, keepdim=True), x.mean()]}",
        "torch.randn(30, 70), torch.randn(30, 70)",
        "x, y",
    ),
    "buffer": module(
        "self.register_buffer('b', torch.randn(1, 64, 1)); self.register_buffer('t', torch.tensor(3.0))",
        "return (x + self.b) * self.t",
        "torch.randn(8, 64, 33)",
    ),
    "float16": module(
        "self.n = nn.LayerNorm(640).half()",
        "return F.softmax(self.n(x) * 2, -1)",
        "torch.randn(64, 640).half()",
    ),
    "float16_linear": module(
        "self.l = nn.Linear(128, 64).half()", "return F.gelu(self.l(x))", "torch.randn(32, 128).half()"
    ),
    "bfloat16_rms": module(
        "self.w = nn.Parameter(torch.randn(640).bfloat16())",
        "return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.w",
        "torch.randn(64, 640).bfloat16()",
    ),
    "broadcasting": module(
        "self.b = nn.Parameter(torch.randn(17, 1, 5))",
        "return torch.where(m, x * y + self.b, x.new_zeros(())).exp().clamp(max=50.0)",
        "torch.randn(4, 1, 23, 5), torch.randn(17, 23, 1), torch.rand(4, 17, 23, 5) > 0.5",
        "x, y, m",
    ),
    "batch_norm": module(
        "self.n = nn.BatchNorm2d(32)", "return F.relu(self.n(x))", "torch.randn(4, 32, 14, 14)"
    ),
    "log_softmax": module("", "return F.log_softmax(x * 0.7, dim=-1)", "torch.randn(16, 5000)"),
    "mlp": module(
        "self.l = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))",
        "return self.l(x)",
        "torch.randn(33, 64)",
    ),
    "over_dim_1": module("", "return x.mean(1), x.amax(1), F.softmax(x, 1)", "torch.randn(4, 96, 300)"),
    "long_columns": module("", "return x.sum(0), x.std(0)", "torch.randn(20000, 40)"),
    "full_reductions": module("", "return (x * x).mean(), x.std(), x.max()", "torch.randn(1000, 1003)"),
    "long_row": module("", "return torch.softmax(x, -1)", "torch.randn(300, 40001)"),
    "linear_softmax": module(
        "self.l = nn.Linear(100, 57)",
        "return torch.softmax(F.leaky_relu(self.l(x)), -1)",
        "torch.randn(100, 100)",
    ),
    "group_norm": module(
        "self.n = nn.GroupNorm(8, 64)", "return F.hardswish(self.n(x)) + 1", "torch.randn(4, 64, 10, 10)"
    ),
    "arguments": module("", "return x.argmax(1), x.min(dim=2), torch.argmin(x)", "torch.randn(16, 50, 33)"),
    "integers": module(
        "",
        "return (x // 3) % 5 + y.long(), (x > 2).any(1), x.sum(), x.float().mean()",
        "torch.randint(-20, 20, (64, 65)), torch.rand(64, 65) > 0.5",
        "x, y",
    ),
    "norms": module(
        "",
        "return F.normalize(x, dim=1), x.norm(p=1, dim=2), x.norm(), torch.logsumexp(x, (1, 2))",
        "torch.randn(32, 40, 30)",
    ),
    "views": module(
        "self.p = nn.Parameter(torch.randn(6))",
        "a, b = x.chunk(2, -1)\ng = a * torch.sigmoid(b)\ny = g.transpose(1, 2).reshape(4, -1) + 1\n"
        "return y, g[:, ::2].flip(1), x[:, 3], (x.permute(2, 0, 1) * self.p.view(6, 1, 1)).sum(0)",
        "torch.randn(4, 10, 6)",
    ),
    "in_place": module(
        "self.k = torch.tensor(2.0)",
        "y = x * self.k\ny.add_(1).relu_()\ny[:, 0] = 3.0\nreturn y",
        "torch.randn(10, 6)",
    ),
    "not_contiguous": module(
        "", "return torch.softmax(x + 1, -1) * y", "torch.randn(64, 100).t(), torch.randn(100, 64)", "x, y"
    ),
    "attention": module(
        "self.q = nn.Linear(64, 64); self.k = nn.Linear(64, 64); self.v = nn.Linear(64, 64)",
        "q, k, v = (f(x).view(2, 30, 4, 16).transpose(1, 2) for f in (self.q, self.k, self.v))\n"
        "a = torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1)\n"
        "return (a @ v).transpose(1, 2).reshape(2, 30, 64)",
        "torch.randn(2, 30, 64)",
    ),
    "activations": module(
        "",
        "return (F.elu(x), F.selu(x), F.celu(x), F.softplus(x), F.logsigmoid(x), F.hardsigmoid(x),\n"
        "F.softsign(x), F.relu6(x), F.threshold(x, 0.1, -2.0), F.tanhshrink(x),\n"
        "F.gelu(x, approximate='tanh'),\n"
        "torch.pow(x.abs(), 1.7), x ** 3, torch.log1p(x.abs()), torch.expm1(x), torch.erf(x),\n"
        "torch.sin(x) + torch.cos(x), torch.rsqrt(x.abs()), torch.reciprocal(x), x.floor() + x.round(),\n"
        "torch.fmod(x, 1.3), torch.remainder(x, 1.3), torch.atan2(x, x + 1), F.glu(x), torch.square(x))",
        "torch.randn(50, 130)",
    ),
    "several_shapes": HEAD
    + """CASE_WEIGHTS = [0.5, 0.3, 0.2]
class Model(nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.n = nn.LayerNorm(width)
        self.l = nn.Linear(width, 32)
    def forward(self, x, scale=1.5):
        return torch.relu(self.l(self.n(x))) * scale
def get_inputs(case=0):
    return [torch.randn([8, 64, 200][case], 96)]
def get_init_inputs():
    return [96]
""",
}


def load(path: Path, name: str) -> ModuleType:
    """Import a file under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def captured(source: str, folder: Path) -> Captured:
    """The captured graph of a source."""
    path = folder / "model.py"
    path.write_text(source)
    return parse(json.dumps(record) for record in capture.capture(path))


def kernels(device: str) -> KernelBackend:
    """The emitter for a device."""
    return CpuKernels() if device == "cpu" else CudaKernels()


def write(candidate: Candidate, folder: Path) -> None:
    """Write a candidate's files."""
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / candidate.kernel_file()).write_text(candidate.kernel_source())
    (folder / candidate.binding_file()).write_text(candidate.binding_source())
    (folder / "model_new.py").write_text(candidate.model_source())


@dataclass
class Prepared:
    """A built module beside its reference, on a device."""

    candidate: Candidate
    reference: Any
    new: Any
    source: ModuleType
    device: str

    def inputs(self, case: int, change: str = "") -> list[Any]:
        """A draw, as it is or changed."""
        values = self.source.get_inputs(case) if len(self.candidate.cases) > 1 else self.source.get_inputs()
        moved = [v.to(self.device) if isinstance(v, torch.Tensor) else v for v in values]
        maps = {"": lambda t: t, "scaled": lambda t: t * 20 - 5, "flipped": lambda t: t * -3}
        return [maps[change](v) if _is_float(v) else v for v in moved]


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def prepare(source_text: str, device: str, folder: Path) -> Prepared:
    """Capture, plan, build and load; parameters moved away from their defaults."""
    from cuda_agent.backends import get_backend
    from cuda_agent.config import Device, Track
    from cuda_agent.judge.build import build
    from cuda_agent.workspace.snapshot import freeze

    candidate = make_candidate(captured(source_text, folder), source_text, kernels(device))
    write(candidate, folder)
    outcome = build(
        freeze(folder), get_backend(Device(device)), track=Track.MATCHED, folder=folder / "built", limit_s=600
    )
    assert outcome.ok and outcome.library is not None, outcome.message
    load(outcome.library, "cuda_extension")
    source, new = load(folder / "model.py", "reference"), load(folder / "model_new.py", "candidate")
    torch.manual_seed(1)
    reference = source.Model(*source.get_init_inputs()).eval()
    with torch.no_grad():
        for value in reference.parameters():
            value.mul_(1.3).add_(torch.randn_like(value) * 0.1)
        for name, value in reference.named_buffers():
            if "running" in name:
                value.mul_(0.5 + torch.rand_like(value)).add_(0.2)
    made = new.ModelNew(*source.get_init_inputs()).eval()
    made.load_state_dict(reference.state_dict())
    return Prepared(candidate, reference.to(device), made.to(device), source, device)


def flatten(output: Any) -> list[torch.Tensor]:
    """Tensors of a nested output, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    children = output.values() if isinstance(output, dict) else output
    return [t for child in children for t in flatten(child)]


def worst_excess(prepared: Prepared, case: int, change: str) -> float:
    """Largest scaled error over its budget (1 is the limit); raises on a shape, dtype or integer mismatch."""
    inputs = prepared.inputs(case, change)
    before = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
    with torch.no_grad():
        expected, got = flatten(prepared.reference(*inputs)), flatten(prepared.new(*inputs))
        for old, now in zip(before, inputs, strict=True):
            assert not isinstance(old, torch.Tensor) or torch.equal(old, now), "an input was changed"
        exact = _in_double(prepared, inputs, expected)
    assert len(expected) == len(got)
    return max(_excess(e, g, x) for e, g, x in zip(expected, got, exact, strict=True))


def _in_double(prepared: Prepared, inputs: list[Any], expected: list[torch.Tensor]) -> list[torch.Tensor]:
    if not all(t.dtype == torch.float32 or not t.dtype.is_floating_point for t in expected):
        return expected  # half precision: eager is the measure, with a budget to match
    double = copy.deepcopy(prepared.reference).double()
    for name, value in vars(double).items():
        if isinstance(value, torch.Tensor):
            setattr(double, name, value.double())
    return flatten(double(*[v.double() if _is_float(v) else v for v in inputs]))


def _excess(expected: torch.Tensor, got: torch.Tensor, exact: torch.Tensor) -> float:
    assert (expected.shape, expected.dtype) == (got.shape, got.dtype)
    if not expected.dtype.is_floating_point:
        assert torch.equal(expected, got)
        return 0.0
    exact = exact.double()
    finite = torch.isfinite(expected)
    same = (expected == got) | (expected.isnan() & got.isnan())
    assert same[~finite].all(), "infinities or NaN differ from eager's"
    scale = exact.abs() + exact.pow(2).mean().sqrt() + 1e-300
    own = ((expected.double() - exact).abs() / scale)[finite]
    mine = ((got.double() - exact).abs() / scale)[finite]
    if not mine.numel():
        return 0.0
    unit = torch.finfo(expected.dtype).eps / 2
    full = expected.dtype == torch.float32
    budget = max(64 * own.max().item(), 32 * unit) if full else 8 * unit
    return mine.max().item() / budget if torch.isfinite(mine).all() else float("inf")


def main(argv: list[str]) -> int:
    """Check the named modules (all when none is named) on a device, every configuration; print a table."""
    device, names = argv[0], argv[1:] or list(MODULES)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                failed += _report(name, device, Path(folder))
            except Exception as error:  # noqa: BLE001 - a table of what fails is the purpose
                failed += 1
                print(f"{name:18s} FAILED {type(error).__name__}: {str(error)[:1500]}", flush=True)
    print(f"{len(names) - failed} of {len(names)} right")
    return 1 if failed else 0


def _report(name: str, device: str, folder: Path) -> int:
    prepared = prepare(MODULES[name], device, folder)
    config = sys.modules["candidate"].CONFIG
    failed = 0
    for case in range(len(prepared.candidate.cases)):
        worst = max(worst_excess(prepared, case, change) for change in ("", "scaled", "flipped"))
        eager, own = _time_us(prepared, case, prepared.reference), _time_us(prepared, case, prepared.new)
        compiled = _time_us(prepared, case, torch.compile(prepared.reference, dynamic=False))
        tried = []
        for c, step, value in variants(prepared.candidate):
            if c == case:
                old, config[c][step] = config[c][step], value
                right = worst_excess(prepared, case, "") <= 1
                failed += not right
                took = _time_us(prepared, case, prepared.new)
                tried.append(f"[{step}]={value}: {took:.1f}{'' if right else ' WRONG'}")
                config[c][step] = old
        failed += worst > 1
        print(
            f"{name:18s} case {case} {'ok' if worst <= 1 else 'WRONG'} ({worst:.3f} of budget) "
            f"eager {eager:.1f} compile {compiled:.1f} playbook {own:.1f} us; {', '.join(tried)}",
            flush=True,
        )
    return int(failed > 0)


def _time_us(prepared: Prepared, case: int, function: Any) -> float:
    """Median time of one call, microseconds; a rough figure, the judge measures properly."""
    inputs = prepared.inputs(case)
    samples = []
    with torch.no_grad():
        for _ in range(5):
            function(*inputs)
        for _ in range(20):
            if prepared.device == "cuda":
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda._sleep(200_000)  # the launch is queued while the device spins
                start.record()
                function(*inputs)
                stop.record()
                torch.cuda.synchronize()
                samples.append(start.elapsed_time(stop) * 1000)
            else:
                began = time.perf_counter()
                function(*inputs)
                samples.append((time.perf_counter() - began) * 1e6)
    return sorted(samples)[len(samples) // 2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
