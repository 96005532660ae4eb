"""A task, a kernel written by hand for it, and scripts that the replay policy plays."""

import json
from pathlib import Path

TASK = '''import torch
from torch import nn


class Model(nn.Module):
    """Gated SiLU with a learned gain."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x, gate):
        return x * torch.sigmoid(x) * gate * self.gain


def get_inputs():
    return [torch.randn(512, 384), torch.randn(512, 384)]


def get_init_inputs():
    return [384]
'''

KERNEL = """#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float exp_simd(float x) {
    x = std::min(std::max(x, -87.3f), 88.7f);
    const float n = (x * 1.44269504f + 12582912.f) - 12582912.f;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

extern "C" void gated(const float* x, const float* gate, const float* gain, float* out, int64_t rows,
                      int64_t width) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* a = x + row * width;
        const float* b = gate + row * width;
        float* o = out + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
            o[i] = a[i] / (1.f + exp_simd(-a[i])) * b[i] * gain[i];
        }
    }
}
"""

BINDING = """#include <cstdint>

#include "../binding_registry.h"

extern "C" void gated(const float*, const float*, const float*, float*, int64_t, int64_t);

static void run(std::uintptr_t x, std::uintptr_t gate, std::uintptr_t gain, std::uintptr_t out, int64_t rows,
                int64_t width) {
    gated(reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(gate),
          reinterpret_cast<const float*>(gain), reinterpret_cast<float*>(out), rows, width);
}

static void bind(pybind11::module& module) { module.def("gated", &run); }

REGISTER_BINDING(gated, bind);
"""

MODEL_NEW = """import torch
from torch import nn

import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x, gate):
        out = torch.empty_like(x)
        cuda_extension.gated(x.data_ptr(), gate.data_ptr(), self.gain.data_ptr(), out.data_ptr(), *x.shape)
        return out
"""

WRONG_KERNEL = KERNEL.replace("* b[i] *", "* b[i / 2 * 2] *")
BROKEN_KERNEL = KERNEL.replace("o[i] =", "o[i] = undeclared +")


def write_files(folder: Path, *, kernel: str = KERNEL) -> None:
    """Put the candidate's files into a workspace."""
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "gated.cpp").write_text(kernel)
    (folder / "kernels" / "gated_binding.cpp").write_text(BINDING)
    target = folder / "model_new.py"
    if target.exists():
        target.chmod(0o644)
    target.write_text(MODEL_NEW)


def bash(command: str) -> dict:
    return {"text": "", "calls": [{"name": "Bash", "arguments": {"command": command}}]}


def write(path: str, content: str) -> dict:
    return bash(f"cat > {path} <<'END_OF_FILE'\n{content}\nEND_OF_FILE")


def writes(kernel: str = KERNEL) -> list[dict]:
    return [
        write("kernels/gated.cpp", kernel),
        write("kernels/gated_binding.cpp", BINDING),
        write("model_new.py", MODEL_NEW),
    ]


COMPILE = bash("bash utils/compile.sh")
VERIFY = bash("python3 -m utils.verification")
PROFILE = bash("python3 -m utils.profiling")


def recording(path: Path, actions: list[dict]) -> Path:
    """A script for ``--policy replay:FILE``."""
    path.write_text(json.dumps(actions))
    return path
