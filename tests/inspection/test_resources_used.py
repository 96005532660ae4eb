"""Registers, spills, and the tools' numbers."""

import shutil
import subprocess
import sysconfig

import pytest

from cuda_agent.backends.cuda import CudaBackend
from cuda_agent.inspection.resources_used import (
    CallUnderTool,
    KernelResources,
    kernel_resources,
    parse_ncu,
    parse_ptxas,
    resource_lines,
)
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scalePf' for 'sm_90'
ptxas info    : Function properties for _Z5scalePf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 2048 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'plain_c' for 'sm_90'
    64 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, 384 bytes cmem[0]
"""

NCU = """==PROF== Connected to process 1
"ID","Kernel Name","launch__registers_per_thread","gpu__time_duration.sum"
"","","register/thread","us"
"0","scale(float *)","12","3.5"
"""


def test_ptxas_reports_are_read():
    first, second = parse_ptxas(PTXAS)
    assert (first.registers, first.spill_stores, first.shared_bytes) == (12, 0, 2048)
    assert first.name in ("scale", "_Z5scalePf")
    assert second == KernelResources("plain_c", 255, 40, 44, 0)
    lines = resource_lines([first, second])
    assert "no spills" in lines[0] and "SPILLS 40 B stored, 44 B loaded" in lines[1]


def test_ncu_pages_are_read_and_silence_is_named():
    assert parse_ncu(NCU) == ["scale: time 3.5 us, registers 12 register/thread"]
    assert parse_ncu("==ERROR== no permission to use counters\n") == [
        "ncu gave no numbers: ==ERROR== no permission to use counters"
    ]
    unfinished = NCU.replace("3.5", "nan").replace('"12"', '"nan"')
    assert parse_ncu(unfinished) == ["scale: nothing measured: it did not run to its end"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the path")
def test_a_kernel_that_spills_is_told_from_one_that_does_not(monkeypatch):
    monkeypatch.setenv("CUDA_AGENT_ARCH", "sm_90")
    body = "\n".join(f"    float v{i} = x[i + {i * 32}] * {i}.f;" for i in range(200))
    total = " + ".join(f"v{i} * v{(i * 7) % 200}" for i in range(200))
    kernels = (
        'extern "C" __global__ void small(float* x) { x[threadIdx.x] *= 2.f; }\n'
        'extern "C" __global__ void __launch_bounds__(1024) large(const volatile float* x, float* y) {\n'
        f"    int i = threadIdx.x;\n{body}\n    __syncthreads();\n    y[i] = {total};\n}}\n"
    )
    snapshot = Snapshot({"model_new.py": b"", "kernels/k.cu": kernels.encode()})
    found = {k.name: k for k in kernel_resources(snapshot, CudaBackend(), track="matched")}
    assert set(found) == {"small", "large"}
    assert found["small"].spill_stores == 0 and 0 < found["small"].registers < 32
    assert found["large"].registers > 32


def test_a_call_is_made_under_a_tool(tmp_path):
    """The tool here only runs what it is given, as a profiler does, and says so."""
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nshift 2\n\"$@\" && echo '===== the call ended well'\n")
    tool.chmod(0o755)
    task = Task(
        code="import torch\nfrom torch import nn\nclass Model(nn.Module):\n    pass\n"
        "def get_inputs():\n    return [torch.ones(3)]\ndef get_init_inputs():\n    return []\n"
    )
    model_new = (
        b"from torch import nn\nimport cuda_extension\nclass ModelNew(nn.Module):\n"
        b"    def forward(self, x):\n        assert x.shape == (3,)\n        return x\n"
    )
    library = tmp_path / "cuda_extension.so"
    _build_empty_extension(library)
    with CallUnderTool(Snapshot({"model_new.py": model_new}), library, task) as call:
        assert call.sanitize(str(tool)) == ["the call ended well"]


def _build_empty_extension(path):
    source = path.with_suffix(".c")
    source.write_text(
        "#include <Python.h>\n"
        'static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "cuda_extension", 0, -1, 0};\n'
        "PyMODINIT_FUNC PyInit_cuda_extension(void) { return PyModule_Create(&def); }\n"
    )
    include = sysconfig.get_path("include")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", f"-I{include}", source, "-o", path], check=True)
