"""Candidates for judge tests: one task, one binding, kernels and forwards that differ.

The task: y = relu(x * scale) + shift, for x of 64 x 384 float32, ``scale`` a parameter, ``shift`` a
buffer. Every candidate shares the binding, so that its slow part compiles once.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from cuda_agent.task import Task

TASK = Task(
    name="scaled_relu",
    code=dedent(
        """
        import torch
        import torch.nn as nn


        class Model(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(width))
                self.register_buffer("shift", torch.zeros(width))

            def forward(self, x):
                return torch.relu(x * self.scale) + self.shift


        def get_inputs():
            return [torch.randn(64, 384)]


        def get_init_inputs():
            return [384]
        """
    ),
)

BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"

extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width);

static void run(at::Tensor y, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
    run_kernel(y.data_ptr<float>(), x.data_ptr<float>(), scale.data_ptr<float>(),
               shift.data_ptr<float>(), x.size(0), x.size(1));
}

static void bind(pybind11::module& m) { m.def("run", &run); }
REGISTER_BINDING(scaled_relu, bind);
"""

KERNEL = """
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < width; ++j) {
            const float v = x[i * width + j] * scale[j];
            y[i * width + j] = (v > 0.0f ? v : v != v ? v : 0.0f) + shift[j];
        }
}
"""

MODEL = """
import torch
import torch.nn as nn
import cuda_extension
{imports}

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.zeros(width))
{init}
{methods}
    def forward(self, x):
{forward}
"""

FORWARD = """
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y
"""


def write_candidate(
    folder: Path,
    *,
    kernel: str = KERNEL,
    forward: str = FORWARD,
    imports: str = "",
    init: str = "",
    methods: str = "",
    model: str | None = None,
) -> Path:
    """Write a candidate's files into ``folder``; returns it."""
    kernels = folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (kernels / "scaled_relu_binding.cpp").write_text(BINDING)
    (kernels / "scaled_relu.cpp").write_text(kernel)
    source = MODEL.format(
        imports=imports,
        init=indented(init, 8),
        methods=indented(methods, 4),
        forward=indented(forward, 8),
    )
    (folder / "model_new.py").write_text(source if model is None else model)
    return folder


def indented(text: str, spaces: int) -> str:
    """Text as the body of a block."""
    body = dedent(text).strip("\n")
    return "\n".join(" " * spaces + line for line in body.splitlines())
