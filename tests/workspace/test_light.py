"""The light form: kernels found in the sources, and the binding written from them builds."""

import os

import pytest

from cuda_agent.backends import toolchain
from cuda_agent.backends.cuda import CudaBackend
from cuda_agent.config import Track
from cuda_agent.judge.build import build
from cuda_agent.judge.symbols import scan_library
from cuda_agent.workspace.light import (
    LIGHT_BINDING,
    Kernel,
    LightFormError,
    find_kernels,
    is_light,
    public_form,
)
from cuda_agent.workspace.snapshot import Snapshot

SOURCE = b"""#include <cstdint>
// extern "C" __global__ void not_this(int a)
extern "C" __global__ void __launch_bounds__(256) scale(const float* __restrict__ x, float* out,
                                                        const int64_t size, float factor) {
    int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) out[i] = factor * x[i];
}
"""
FILES = {"model_new.py": b"class ModelNew: pass\n", "kernels/scale.cu": SOURCE}


def test_kernels_are_read_off_the_sources():
    assert find_kernels(FILES) == [Kernel("scale", ("uintptr_t", "uintptr_t", "int64_t", "float"))]


def test_a_binding_makes_a_candidate_public():
    assert is_light(FILES)
    public = public_form(Snapshot(FILES))
    assert not is_light(public.files)
    assert b"REGISTER_BINDING" in public.files[LIGHT_BINDING]
    assert not is_light({**FILES, "kernels/scale_binding.cpp": b""})
    assert not is_light({"kernels/a.cu": b"__global__ void k() {}"})


@pytest.mark.parametrize("parameter", ["Shape shape", "float& x", "float x[4]", "float* const* (&x)[2]"])
def test_other_parameters_are_refused_by_name(parameter):
    source = f'extern "C" __global__ void k({parameter}) {{}}'.encode()
    with pytest.raises(LightFormError, match="k: parameter"):
        find_kernels({"kernels/a.cu": source})


@pytest.mark.slow
@pytest.mark.skipif(toolchain.find_cuda() is None, reason="no CUDA compiler here")
def test_the_written_binding_builds_and_passes_the_scan(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_AGENT_ARCH", os.environ.get("CUDA_AGENT_ARCH", "sm_90"))
    built = build(Snapshot(FILES), CudaBackend(), track=Track.MATCHED, folder=tmp_path / "build", limit_s=240)
    assert built.ok, built.message
    assert built.library is not None
    scan = scan_library(built.library)
    assert not scan.forbidden_libraries
    assert "scale" not in scan.undefined
