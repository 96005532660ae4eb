"""Whole verdicts on a GPU: nvcc, device memory shared between processes, device timing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda_candidates import FORWARD, KERNEL, LARGE, candidate

from cuda_agent.config import Device, JudgeConfig, Precision, Scope, Track
from cuda_agent.judge import JudgeSession, judge
from cuda_agent.result import Fault, Result, Stage, ViolationKind
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=1.0, run_limit_s=60.0)
    with JudgeSession(LARGE, config) as opened:
        yield opened


def test_an_honest_candidate_is_correct_and_timed(session: JudgeSession) -> None:
    result = session.judge(candidate(), Scope.FULL)
    assert (result.stage, result.correct) == (Stage.DONE, True), result.detail
    assert result.candidate_us is not None and result.eager_us is not None and result.compile_us is not None
    assert result.reward in (2, 3), result.to_json()
    # 1 GiB moved at no more than the card's bandwidth.
    assert 200 < result.candidate_us.median < 1000


@pytest.mark.parametrize(
    "forward",
    ["        return torch.relu(x * self.scale) + self.shift\n", FORWARD.replace("return y", "return y + 0")],
)
def test_torch_compute_is_a_violation(session: JudgeSession, forward: str) -> None:
    result = session.judge(candidate(forward=forward), Scope.VERIFY)
    assert [v.kind for v in result.violations] == [ViolationKind.TORCH_COMPUTE]


def test_a_second_stream_left_open_is_refused(session: JudgeSession) -> None:
    kernel = KERNEL.replace(
        "    scaled_relu<<<132 * 16, 256, 0, (cudaStream_t)stream>>>",
        "    static cudaStream_t side = nullptr;\n"
        "    if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);\n"
        "    scaled_relu<<<1, 64, 0, side>>>",
    )
    result = session.judge(candidate(kernel=kernel), Scope.VERIFY)
    assert result.correct is False


def test_an_illegal_access_costs_one_candidate(session: JudgeSession) -> None:
    kernel = KERNEL.replace("y[i] = v;", "y[i + (1L << 40)] = v;")
    result = session.judge(candidate(kernel=kernel), Scope.FULL)
    assert (result.correct, result.fault, result.reward) == (False, Fault.ILLEGAL_ACCESS, -1)
    assert session.judge(candidate(), Scope.VERIFY).correct is True


def test_a_patched_timer_gains_nothing(session: JudgeSession) -> None:
    """Patched past the static scan: the judge's own clock tells."""
    imports = (
        "import operator\noperator.attrgetter('cuda.Event')(torch).elapsed_time = lambda self, end: 0.001\n"
    )
    forged = session.judge(candidate(imports=imports), Scope.FULL)
    assert forged.correct is False
    assert [v.kind for v in forged.violations] == [ViolationKind.TIME_MANIPULATION]


def test_device_memory_travels_as_a_descriptor(session: JudgeSession) -> None:
    assert session.place.transport == "device"


MATMUL = Task(
    name="matmul",
    code="""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(2048, 4096), torch.randn(4096, 2048)]


def get_init_inputs():
    return []
""",
)

MATMUL_CANDIDATE = {
    "model_new.py": """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        cuda_extension.gemm(y, a, b)
        return y
""",
    "kernels/gemm_binding.cpp": """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"
extern "C" void gemm_launch(float*, const float*, const float*, int, int, int, void*);
static void gemm(at::Tensor y, const at::Tensor& a, const at::Tensor& b) {
    gemm_launch(y.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), a.size(0), b.size(1),
                a.size(1), c10::cuda::getCurrentCUDAStream().stream());
}
static void bind(pybind11::module& m) { m.def("gemm", &gemm); }
REGISTER_BINDING(gemm, bind);
""",
    "kernels/gemm.cu": """
#include <cublas_v2.h>
extern "C" void gemm_launch(float* y, const float* a, const float* b, int m, int n, int k, void* stream) {
    static cublasHandle_t handle = nullptr;
    if (!handle) cublasCreate(&handle);
    cublasSetStream(handle, (cudaStream_t)stream);
    const float one = 1.0f, zero = 0.0f;
    cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b, CUDA_R_32F, n, a, CUDA_R_32F, k,
                 &zero, y, CUDA_R_32F, n, COMPUTE, CUBLAS_GEMM_DEFAULT);
}
""",
}


@pytest.mark.parametrize(
    ("compute", "precision", "track", "kinds"),
    [
        ("CUBLAS_COMPUTE_32F", Precision.DEFAULT, Track.MATCHED, []),
        ("CUBLAS_COMPUTE_32F_FAST_TF32", Precision.DEFAULT, Track.MATCHED, ["precision"]),
        ("CUBLAS_COMPUTE_32F_FAST_TF32", Precision.TF32, Track.MATCHED, []),
    ],
)
def test_tf32_is_held_to_the_contract(
    compute: str, precision: Precision, track: Track, kinds: list[str]
) -> None:
    files = {name: text.replace("COMPUTE,", f"{compute},") for name, text in MATMUL_CANDIDATE.items()}
    config = JudgeConfig(device=Device.CUDA, precision=precision, track=track)
    with JudgeSession(MATMUL, config) as session:
        snapshot = Snapshot({name: text.encode() for name, text in files.items()})
        result: Result = session.judge(snapshot, Scope.VERIFY)
    assert [str(v.kind) for v in result.violations] == kinds, result.detail
    assert result.correct is (not kinds), result.detail


PUBLIC_WORKSPACE = {
    # A workspace as the public scripts lay it out, theirs not ours: foreign fixed files are replaced.
    "model.py": """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, a, b):
        return self.alpha * a + b


def get_inputs():
    return [torch.randn(1, 128).cuda(), torch.randn(1, 128).cuda()]


def get_init_inputs():
    return [2.0]
""",
    "model_new.py": """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, a, b):
        return cuda_extension.axpby_forward(a, b, self.alpha)
""",
    "binding.cpp": "#error the workspace's own fixed file was compiled",
    "binding_registry.h": "#error the workspace's own fixed file was included",
    "utils/compile.py": "raise SystemExit('the workspace's own script ran')",
    "kernels/axpby.cu": """
#include <cuda_runtime.h>

__global__ void axpby_kernel(float* out, const float* a, const float* b, float alpha, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = alpha * a[i] + b[i];
}

extern "C" void axpby_launcher(float* out, const float* a, const float* b, float alpha, int n, int config,
                               cudaStream_t stream) {
    const int threads = config == 1 ? 256 : 128;
    axpby_kernel<<<(n + threads - 1) / threads, threads, 0, stream>>>(out, a, b, alpha, n);
}
""",
    "kernels/axpby_binding.cpp": """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"

extern "C" void axpby_launcher(float*, const float*, const float*, float, int, int, cudaStream_t);

static torch::Tensor axpby_forward(torch::Tensor a, torch::Tensor b, float alpha, int config) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be on the GPU");
    TORCH_CHECK(a.is_contiguous() && b.is_contiguous(), "inputs must be contiguous");
    auto out = torch::empty_like(a);
    axpby_launcher(out.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), alpha,
                   static_cast<int>(a.numel()), config, c10::cuda::getCurrentCUDAStream());
    return out;
}

static void register_axpby(pybind11::module& m) {
    m.def("axpby_forward", &axpby_forward, pybind11::arg("a"), pybind11::arg("b"), pybind11::arg("alpha"),
          pybind11::arg("config") = 0);
}

REGISTER_BINDING(axpby, register_axpby)
""",
}


@pytest.mark.parametrize("track", [Track.MATCHED, Track.PAPER])
def test_a_public_workspace_is_judged_unchanged(tmp_path: Path, track: Track) -> None:
    for name, text in PUBLIC_WORKSPACE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    result = judge(tmp_path, config=JudgeConfig(device=Device.CUDA, track=track, timing_budget_s=1.0))
    assert (result.stage, result.correct, result.reference) == (Stage.DONE, True, "unverified"), result.detail
    assert result.reward in (1, 2, 3)


def test_memory_is_shared_across_users(tmp_path: Path) -> None:
    """A child of another uid writes into device memory that the parent made."""
    script = Path(__file__).with_name("share_device_memory.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
