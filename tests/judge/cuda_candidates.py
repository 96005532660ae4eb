"""The candidates of ``candidates.py`` on a GPU: the same task, large, a kernel as fast as memory."""

from __future__ import annotations

from dataclasses import replace

from candidates import BINDING, MODEL, TASK, indented

from cuda_agent.workspace.snapshot import Snapshot

LARGE = replace(TASK, code=TASK.code.replace("64, 384", "16384, 8192").replace("[384]", "[8192]"))

CUDA_BINDING = (
    BINDING.replace("#include <torch/types.h>", "#include <torch/types.h>\n#include <c10/cuda/CUDAStream.h>")
    .replace("long rows, long width)", "long rows, long width, void* stream)")
    .replace("x.size(1));", "x.size(1), c10::cuda::getCurrentCUDAStream().stream());")
)

KERNEL = """
#include <cuda_runtime.h>
__global__ void scaled_relu(float4* y, const float4* x, const float4* scale, const float4* shift,
                            long rows, int width) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < rows * width;
         i += (long)gridDim.x * blockDim.x) {
        const int j = i % width;
        float4 v = x[i];
        const float4 s = scale[j], t = shift[j];
        v.x = fmaxf(v.x * s.x, 0.0f) + t.x;
        v.y = fmaxf(v.y * s.y, 0.0f) + t.y;
        v.z = fmaxf(v.z * s.z, 0.0f) + t.z;
        v.w = fmaxf(v.w * s.w, 0.0f) + t.w;
        y[i] = v;
    }
}
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift, long rows,
                           long width, void* stream) {
    scaled_relu<<<132 * 16, 256, 0, (cudaStream_t)stream>>>((float4*)y, (const float4*)x,
        (const float4*)scale, (const float4*)shift, rows, (int)width / 4);
}
"""

_FIRST = "    for (long i = blockIdx.x"
_LAUNCH = "    scaled_relu<<<"


def first_on_device(statement: str) -> str:
    """The kernel, with a statement that every thread runs first."""
    return KERNEL.replace(_FIRST, f"    {statement}\n{_FIRST}", 1)


def first_on_host(statements: str) -> str:
    """The kernel, with statements before its launch."""
    return KERNEL.replace(_LAUNCH, f"{statements}\n{_LAUNCH}", 1)


DEVICE_FAULTS = {
    "illegal": first_on_device("*(volatile int*)8 = 1;"),
    "misaligned": first_on_device("*(int4*)((char*)y + 4) = int4{};"),
    "assert": "#include <cassert>\n" + first_on_device("assert(rows < 0);"),
}
"""Kernels that end their process's context at once, by what is wrong with them."""

FORWARD = """        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y
"""


def candidate(
    *, kernel: str = KERNEL, forward: str = FORWARD, imports: str = "", init: str = "", methods: str = ""
) -> Snapshot:
    """A candidate's files, frozen."""
    model = MODEL.format(
        imports=imports,
        init=indented(init, 8),
        methods=indented(methods, 4),
        forward=indented(forward, 8),
    )
    files = {
        "model_new.py": model,
        "kernels/scaled_relu.cu": kernel,
        "kernels/scaled_relu_binding.cpp": CUDA_BINDING,
    }
    return Snapshot({name: text.encode() for name, text in files.items()})
