"""Whose a kernel is: by names as CUPTI gives them, and against a library that nvcc built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from cuda_candidates import CUDA_BINDING, LARGE, candidate

from cuda_agent.backends.toolchain import find_cuda
from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.attribution import Origin, base_name, origin_of, own_names, shares, torch_kernels
from cuda_agent.judge.evidence import CaseSamples, foreign_compute
from cuda_agent.judge.symbols import defined_names
from cuda_agent.result import Result, Stage, ViolationKind
from cuda_agent.workspace.snapshot import Snapshot

OWN = frozenset({"scaled_relu", "my::tile", "(anonymous namespace)::sum", "cub::detail::DeviceReduceKernel"})
_FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, int>(int)"
_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int)"
KERNELS = [
    ("scaled_relu(float4*, float4 const*, long, int)", Origin.OWN),
    ("void my::tile<float, 64, 4>(float*, float const*)", Origin.OWN),
    ("(anonymous namespace)::sum(float*)", Origin.OWN),
    ("void (anonymous namespace)::sum<c10::BFloat16>(c10::BFloat16*)", Origin.OWN),
    ("void my::tile<at::native::memory::aligned_vector<float, 4> >(float*)", Origin.OWN),
    ("void cub::detail::DeviceReduceKernel<cub::policy, float*>(float*)", Origin.OWN),
    (_ADD, Origin.TORCH),
    ("void at::native::(anonymous namespace)::layer_norm_kernel<float>(int, float)", Origin.TORCH),
    ("void at_cuda_detail::cub::DeviceReduceKernel<float>(float*)", Origin.TORCH),
    ("void thrust::kernel<thrust::agent<at::native::less> >(int)", Origin.TORCH),
    ("void pytorch_flash::flash_fwd_kernel<float>(int)", Origin.TORCH),
    (_FILL, Origin.COPY),
    ("Memcpy DtoD (Device -> Device)", Origin.COPY),
    ("Memset (Device)", Origin.COPY),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas", Origin.LIBRARY),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", Origin.LIBRARY),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(int)", Origin.LIBRARY),
    ("void gemv2T_kernel_val<int, int, float>(int)", Origin.LIBRARY),
    ("void cublasLt::splitKreduce_kernel<32, 16, int>(int)", Origin.LIBRARY),
    ("ampere_sgemm_128x64_tn", Origin.LIBRARY),
    ("void implicit_convolve_sgemm<float, float, 1024>(int)", Origin.LIBRARY),
    ("void cudnn::ops::nchwToNhwcKernel<float>(int)", Origin.LIBRARY),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32", Origin.LIBRARY),
    ("somebody_else(float*)", Origin.UNKNOWN),
    ("attend(float*)", Origin.UNKNOWN),
]


@pytest.mark.parametrize(("kernel", "origin"), KERNELS, ids=[base_name(k)[:40] for k, _ in KERNELS])
def test_origin(kernel: str, origin: Origin) -> None:
    assert origin_of(kernel, OWN) is origin


def test_atens_templates_in_the_candidates_library_stay_pytorchs() -> None:
    assert origin_of(_ADD, OWN | {"at::native::vectorized_elementwise_kernel"}) is Origin.TORCH


def test_mangled_names() -> None:
    assert base_name("_Z11scaled_reluP6float4PKS_li") == "scaled_relu"
    assert base_name("_ZN2my4tileIfLi4EEEvPT_") == base_name("_ZN2myL4tileIfLi4EEEvPT_") == "my::tile"
    assert base_name("_ZN33_GLOBAL__N__3c5edf67_4_a_cu_plain4anonEPf") == "(anonymous namespace)::anon"
    assert base_name("_ZL4statPf") == "stat" and base_name("plain") == "plain"


SOURCE = """
namespace { __global__ void hidden(float* y) { y[threadIdx.x] = 1; } }
static __global__ void local(float* y) { y[threadIdx.x] = 2; }
namespace my { template <class T, int N> __global__ void tile(T* y) { y[threadIdx.x] = N; } }
extern "C" __global__ void plain(float* y) { y[0] = 4; }
__global__ void scaled_relu(float4* y, const float4* x, long n) { y[n] = x[n]; }
extern "C" void run(float* y, cudaStream_t stream) {
    hidden<<<1, 32, 0, stream>>>(y);
    local<<<1, 32, 0, stream>>>(y);
    my::tile<float, 4><<<1, 32, 0, stream>>>(y);
    plain<<<1, 1, 0, stream>>>(y);
    scaled_relu<<<1, 1, 0, stream>>>((float4*)y, (float4*)y, 0);
}
"""
LISTED = (
    "(anonymous namespace)::hidden(float*)",
    "local(float*)",
    "void my::tile<float, 4>(float*)",
    "plain",
    "scaled_relu(float4*, float4 const*, long)",
)


def test_kernels_of_a_library_that_nvcc_built(tmp_path: Path) -> None:
    toolkit = find_cuda()
    if toolkit is None:
        pytest.skip("no nvcc here")
    source, library = tmp_path / "kernels.cu", tmp_path / "kernels.so"
    source.write_text(SOURCE)
    flags = ["-O3", "-gencode", "arch=compute_90,code=sm_90", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([str(toolkit.nvcc), *flags, str(source), "-o", str(library)], check=True)
    own = own_names(defined_names(library))
    assert {origin_of(kernel, own) for kernel in LISTED} == {Origin.OWN}
    assert origin_of("other(float*)", own) is Origin.UNKNOWN


def test_shares_add_up_and_pytorchs_compute_breaks_a_rule() -> None:
    samples = CaseSamples(kernel_names={KERNELS[0][0]: 60.0, _FILL: 10.0, KERNELS[14][0]: 30.0})
    assert foreign_compute(samples, OWN) is None
    found = shares(samples.kernel_names, samples.origins)
    assert found == pytest.approx({Origin.OWN: 0.6, Origin.LIBRARY: 0.3, Origin.COPY: 0.1})
    assert next(iter(found)) is Origin.OWN
    samples.kernel_names[_ADD] = 1.0
    violation = foreign_compute(samples, OWN)
    assert violation is not None and violation.kind is ViolationKind.TORCH_COMPUTE
    assert torch_kernels(samples.kernel_names, OWN) == ["at::native::vectorized_elementwise_kernel"]
    assert shares({}, {}) == {}


# -- on a GPU

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def _judged(frozen: Snapshot) -> Result:
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=0.5, run_limit_s=60.0)
    with JudgeSession(LARGE, config) as session:
        return session.judge(frozen, Scope.FULL)


@pytest.mark.gpu
@gpu
def test_an_honest_kernels_time_is_its_own() -> None:
    result = _judged(candidate(forward=_ZEROS))
    print(result.notes)
    assert result.stage is Stage.DONE
    [origins] = [note for note in result.notes if note.startswith("GPU time by origin")]
    assert "own kernels" in origins and "copies and fills" in origins and "unknown" not in origins


_ZEROS = """
y = torch.zeros_like(x)
cuda_extension.run(y, x, self.scale, self.shift)
return y
"""
# ATen on a thread of its own, which the dispatcher guard does not watch on a GPU.
_ON_A_THREAD = """    pybind11::gil_scoped_release free;
    std::thread work([&] { at::NoGradGuard off; at::relu_out(y, at::mul(x, scale)); y.add_(shift); });
    work.join();
"""
_HEADERS = "#include <thread>\n#include <ATen/ops/mul.h>\n#include <ATen/ops/relu.h>\n"


@pytest.mark.gpu
@gpu
def test_pytorchs_kernels_on_a_thread_are_seen() -> None:
    honest = candidate()
    start = CUDA_BINDING.index("    run_kernel(y.data_ptr")
    binding = _HEADERS + CUDA_BINDING[:start] + _ON_A_THREAD + CUDA_BINDING[start:]
    files = {**honest.files, "kernels/scaled_relu_binding.cpp": binding.encode()}
    result = _judged(Snapshot(files))
    print(result.to_json())
    assert result.correct is False and {v.kind for v in result.violations} == {ViolationKind.TORCH_COMPUTE}
