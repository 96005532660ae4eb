"""What the dispatcher guard lets pass and what it refuses."""

# ruff: noqa: PLW0108  the lambdas put the attribute access, too, under the guard

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import gelu as early_gelu

from cuda_agent.judge.guard import ComputeGuard, ForbiddenOperator

X = torch.arange(12.0).reshape(3, 4)


class Doubler(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


ALLOWED = {
    "empty": lambda: torch.empty(3, 4),
    "empty_like": lambda: torch.empty_like(X),
    "empty_strided": lambda: torch.empty_strided((3, 4), (4, 1)),
    "channels_last": lambda: torch.empty(1, 2, 3, 4, memory_format=torch.channels_last),
    "new_empty": lambda: X.new_empty(5),
    "zeros": lambda: torch.zeros(3, dtype=torch.float16),
    "zeros_like": lambda: torch.zeros_like(X),
    "new_zeros": lambda: X.new_zeros(3),
    "full": lambda: torch.full((2, 2), 3.0),
    "full_like": lambda: torch.full_like(X, 3.0),
    "new_full": lambda: X.new_full((2,), 1.0),
    "ones": lambda: torch.ones(3),
    "view": lambda: X.view(4, 3),
    "reshape_in_place": lambda: X.reshape(2, 6),
    "flatten": lambda: X.flatten(),
    "transpose": lambda: X.t().transpose(0, 1).permute(1, 0).mT,
    "index": lambda: X[1:, ::2],
    "newaxis": lambda: X[None, ..., 0],
    "split": lambda: X.split(2, dim=1),
    "chunk": lambda: X.chunk(2, dim=1),
    "unbind": lambda: X.unbind(0),
    "iterate": lambda: list(X),
    "expand": lambda: X[0].expand(5, 4),
    "as_strided": lambda: X.as_strided((2, 2), (1, 1)),
    "bitcast": lambda: X.view(torch.int32),
    "detach": lambda: X.detach(),
    "data": lambda: X.data,
    "contiguous_already": lambda: X.contiguous(),
    "to_same": lambda: X.to(torch.float32).to("cpu"),
    "float_already": lambda: X.float(),
    "metadata": lambda: (X.shape, X.stride(), X.is_contiguous(), X.numel(), X.dtype, X.data_ptr(), len(X)),
    "view_as_complex": lambda: torch.view_as_complex(X.view(3, 2, 2)),
    "unsqueeze_in_place": lambda: X.detach().unsqueeze_(0),
}

FORBIDDEN = {
    "matmul": lambda: X @ X.t(),
    "method": lambda: X.softmax(-1),
    "torch_function": lambda: torch.add(X, 1),
    "scalar": lambda: X * 2,
    "functional": lambda: functional.relu(X),
    "early_bound": lambda: early_gelu(X),
    "module": lambda: torch.nn.Linear(4, 4)(X),
    "aten": lambda: torch.ops.aten.mm(X, X.t()),
    "aten_out": lambda: torch.ops.aten.mm.out(X, X.t(), out=torch.empty(3, 3)),
    "c_nn": lambda: torch._C._nn.linear(X, X),
    "variable_functions": lambda: torch._C._VariableFunctions.exp(X),
    "prims": lambda: torch.ops.prims.sin(X),
    "autograd_function": lambda: Doubler.apply(X),
    "in_place": lambda: X.clone().add_(1),
    "fill": lambda: torch.empty(3).fill_(1.0),
    "zero": lambda: torch.empty(3).zero_(),
    "setitem": lambda: torch.empty(3, 4).__setitem__(0, X[0]),
    "out_form": lambda: torch.exp(X, out=torch.empty(3, 4)),
    "zeros_out_form": lambda: torch.zeros(3, 4, out=torch.empty(3, 4)),
    "item": lambda: X[0, 0].item(),
    "bool": lambda: bool(X[0, 0]),
    "equal": lambda: torch.equal(X, X),
    "copy": lambda: torch.empty(3, 4).copy_(X),
    "clone": lambda: X.clone(),
    "cast": lambda: X.to(torch.float16),
    "half": lambda: X.half(),
    "contiguous_copies": lambda: X.t().contiguous(),
    "reshape_copies": lambda: X.t().reshape(12),
    "gather": lambda: X[torch.tensor([0, 2])],
    "mask": lambda: X[torch.tensor([True, False, True])],
    "cat": lambda: torch.cat([X, X]),
    "stack": lambda: torch.stack([X, X]),
    "repeat": lambda: X.repeat(2, 1),
    "arange": lambda: torch.arange(5),
    "rand": lambda: torch.rand(3),
    "full_of_tensor": lambda: torch.full((2,), X[0, 0]),
    "storage_copy": lambda: torch.empty(12).untyped_storage().copy_(X.untyped_storage()),
    "conj": lambda: torch.conj(torch.view_as_complex(X.view(3, 2, 2))),
    "einsum": lambda: torch.einsum("ij,kj->ik", X, X),
    "foreach": lambda: torch._foreach_add([X], 1.0),
    "sort": lambda: torch.sort(X),
}


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name, grad):
    guard = ComputeGuard()
    with grad(), guard:
        ALLOWED[name]()
    assert guard.violations == {}
    assert not guard.tampered


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(name, grad):
    guard = ComputeGuard()
    with grad(), guard, pytest.raises(ForbiddenOperator):
        FORBIDDEN[name]()
    assert guard.violations


def test_caught_fallback_stays_recorded():
    guard = ComputeGuard()
    with torch.no_grad(), guard:
        try:
            torch.mm(X, X.t())
        except RuntimeError:
            torch.empty(3, 3)
    assert guard.violations == {"aten::mm": 1}
    assert guard.operators["aten::empty"] == 1


def test_record_only_runs_the_operator():
    guard = ComputeGuard(refuse=False)
    with torch.no_grad(), guard:
        y = torch.relu(X - 5) + X.t().contiguous().sum()
    assert y.shape == (3, 4)
    assert set(guard.violations) == {"aten::sub", "aten::relu", "aten::clone", "aten::sum", "aten::add"}


def test_message_names_the_operator():
    with ComputeGuard(), pytest.raises(ForbiddenOperator, match="aten::mm works on data"):
        torch.mm(X, X.t())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_seen():
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.ReLU()))
    guard = ComputeGuard()
    with torch.no_grad(), guard, pytest.raises(RuntimeError, match="TorchScript"):
        scripted(X)
    assert guard.violations == {"aten::relu": 1}


def test_custom_operator_is_refused_whole():
    library = torch.library.Library("guardtest", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
    guard = ComputeGuard()
    with torch.no_grad(), guard, pytest.raises(ForbiddenOperator):
        torch.ops.guardtest.twice(X)
    assert guard.violations == {"guardtest::twice": 1}


def test_another_mode_left_on_the_stack_is_noticed():
    class Other(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    guard, other = ComputeGuard(), Other()
    guard.__enter__()
    other.__enter__()
    guard.__exit__(None, None, None)  # pops whatever is on top
    other.__exit__(None, None, None)
    assert guard.tampered


def test_prepare_may_compute():
    guard = ComputeGuard(capture_only=True)
    with torch.no_grad(), guard:
        (X @ X.t()).half().contiguous()
    assert guard.violations == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_prepare_may_not_capture_operators():
    x = torch.ones(8, device="cuda")
    guard = ComputeGuard(capture_only=True, refuse=False)
    with torch.no_grad(), guard:
        x + 1
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x * 2
    assert set(guard.violations) == {"aten::mul"}


EXTENSION = """
#include <torch/types.h>
#include <ATen/Functions.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>
static at::Tensor product(at::Tensor a, at::Tensor b) { return at::matmul(a, b); }
static at::Tensor swallow(at::Tensor a) {
  try { return a + a; } catch (...) { return at::empty_like(a); }
}
static at::Tensor honest(at::Tensor a) {
  auto out = torch::empty_like(a);
  for (int64_t i = 0; i < a.numel(); ++i) out.data_ptr<float>()[i] = 2 * a.data_ptr<float>()[i];
  return out.view({-1});
}
PYBIND11_MODULE(guard_probe, m) {
  m.def("product", &product); m.def("swallow", &swallow); m.def("honest", &honest);
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("guard")
    source, library = folder / "guard_probe.cpp", folder / "guard_probe.so"
    source.write_text(EXTENSION)
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    includes.append(f"-I{sysconfig.get_paths()['include']}")
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    argv = ["g++", "-O1", "-std=c++20", "-shared", "-fPIC", *includes, str(source), "-o", str(library)]
    subprocess.run([*argv, *libraries], check=True, capture_output=True)
    sys.path.insert(0, str(folder))
    try:
        import guard_probe
    finally:
        sys.path.remove(str(folder))
    return guard_probe


@pytest.mark.slow
def test_operators_called_from_cpp_are_seen(extension):
    guard = ComputeGuard()
    with torch.no_grad(), guard:
        doubled = extension.honest(X)
    assert guard.violations == {}
    assert torch.equal(doubled, 2 * X.flatten())
    with torch.no_grad(), guard:
        with pytest.raises(ForbiddenOperator):
            extension.product(X, X.t())
        with contextlib.suppress(RuntimeError):  # what follows a swallowed error is torch's affair
            extension.swallow(X)
    assert guard.violations == {"aten::mm": 1, "aten::add": 1}
