"""Verdicts a minute of the local pool: different candidates of one task, from several callers at once.

    PYTHONPATH=src python3 benchmarks/pool.py --device cuda --candidates 20 --limit-s 110 --out pool.json

A fifth of the candidates are wrong on purpose; every verdict is held against what it must be. Ends by itself
when the limit is reached: what had ended by then is reported, and ``complete`` says false.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.pool.contract import JobState, JudgeRequest, plain
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

# Rows and columns: large enough for a GPU to have work, small enough for a shared CPU's private suite.
SHAPES = {Device.CUDA: (1024, 4096), Device.CPU: (64, 384)}
REFERENCE = dedent(
    """
    import torch
    import torch.nn as nn


    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width))
            self.shift = nn.Parameter(torch.zeros(width))

        def forward(self, x):
            return torch.relu(x * self.scale) + self.shift


    def get_inputs():
        return [torch.randn(%(rows)d, %(width)d)]


    def get_init_inputs():
        return [%(width)d]
    """
)
MODEL = dedent(
    """
    import torch
    import torch.nn as nn
    import cuda_extension


    class ModelNew(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width))
            self.shift = nn.Parameter(torch.zeros(width))

        def forward(self, x):
            y = torch.empty_like(x)
            cuda_extension.scaled_relu(y, x, self.scale, self.shift)
            return y
    """
)
BINDING = dedent(
    """
    #include <torch/types.h>
    #include <torch/csrc/utils/pybind.h>
    %(include)s
    #include "../binding_registry.h"

    extern "C" void run_kernel(float*, const float*, const float*, const float*, long, long, void*);

    static void run(at::Tensor y, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
        run_kernel(y.data_ptr<float>(), x.data_ptr<float>(), scale.data_ptr<float>(),
                   shift.data_ptr<float>(), x.size(0), x.size(1), %(stream)s);
    }

    static void bind(pybind11::module& m) { m.def("scaled_relu", &run); }
    REGISTER_BINDING(scaled_relu, bind);
    """
)
CUDA_KERNEL = dedent(
    """
    #include <cuda_runtime.h>

    __global__ void scaled_relu(float* y, const float* x, const float* scale, const float* shift,
                                long total, long width) {
        const long stride = (long)gridDim.x * blockDim.x;
        for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += stride) {
            const float v = x[i] * scale[i %% width];
            y[i] = (v > 0.0f || v != v ? v : 0.0f) + shift[i %% width]%(wrong)s;
        }
    }

    extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                               long rows, long width, void* stream) {
        scaled_relu<<<%(size)d, 256, 0, (cudaStream_t)stream>>>(y, x, scale, shift, rows * width, width);
    }
    """
)
CPU_KERNEL = dedent(
    """
    extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                               long rows, long width, void*) {
        #pragma omp parallel for schedule(static, %(size)d)
        for (long i = 0; i < rows; ++i)
            for (long j = 0; j < width; ++j) {
                const float v = x[i * width + j] * scale[j];
                y[i * width + j] = (v > 0.0f || v != v ? v : 0.0f) + shift[j]%(wrong)s;
            }
    }
    """
)


def task(device: Device) -> Task:
    """The reference, in the device's size."""
    rows, width = SHAPES[device]
    return Task(name="scaled_relu", code=REFERENCE % {"rows": rows, "width": width})


def candidate(number: int, device: Device) -> tuple[Snapshot, bool]:
    """One of many different candidates, and whether it is right."""
    right = number % 5 != 3
    values = {
        "size": 132 + number if device is Device.CUDA else 1 + number,
        "wrong": "" if right else " + 0.1f",
    }
    if device is Device.CUDA:
        kernel, suffix = CUDA_KERNEL % values, "cu"
        words = {
            "include": "#include <c10/cuda/CUDAStream.h>",
            "stream": "c10::cuda::getCurrentCUDAStream().stream()",
        }
    else:
        kernel, suffix = CPU_KERNEL % values, "cpp"
        words = {"include": "", "stream": "nullptr"}
    files = {
        "model_new.py": MODEL,
        "kernels/scaled_relu_binding.cpp": BINDING % words,
        f"kernels/scaled_relu.{suffix}": kernel,
    }
    return Snapshot({name: text.encode() for name, text in files.items()}), right


def main() -> int:
    """Run, print and write the figures; 1 where a verdict is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="judges for each device; 0: by the machine")
    parser.add_argument("--limit-s", type=float, default=110.0)
    parser.add_argument("--timing-budget-s", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = Device(asked.device)
    pool = LocalPool(
        PoolConfig(devices=("cuda:0" if device is Device.CUDA else "cpu",), workers=asked.workers)
    )
    # A judge that hangs must not hold the machine: its descendants die with this process.
    guard = threading.Timer(asked.limit_s + 30, lambda: os._exit(3))
    guard.daemon = True
    guard.start()
    figures = _measured(pool, asked, device)
    text = json.dumps(figures, indent=1)
    print(text)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text + "\n", encoding="utf-8")
    pool.close()
    return 1 if figures["wrong_answers"] else 0


def _measured(pool: LocalPool, asked: argparse.Namespace, device: Device) -> dict[str, object]:
    config = JudgeConfig(device=device, timing_budget_s=asked.timing_budget_s)
    start = time.monotonic()
    # The first verdict starts a judge, compiles the binding and measures the baselines: told apart.
    expected: dict[str, bool] = {}
    ends: dict[str, float] = {}
    _submit(pool, config, 0, asked.callers, expected)
    _wait(pool, expected, ends, start, asked.limit_s)
    first_s = time.monotonic() - start
    for number in range(1, asked.candidates):
        _submit(pool, config, number, asked.callers, expected)
    _wait(pool, expected, ends, start, asked.limit_s)
    rest_s = max(0.0, max(ends.values(), default=first_s) - first_s)
    jobs = {job_id: pool.job(job_id) for job_id in expected}
    done = {i: job for i, job in jobs.items() if job.state is JobState.DONE and job.result is not None}
    wrong = [i for i, job in done.items() if job.result and job.result.correct is not expected[i]]
    return {
        "device": next((job.result.device for job in done.values() if job.result), None),
        "versions": dict(next((job.result.versions for job in done.values() if job.result), {})),
        "cores": os.cpu_count(),
        "host": platform.machine(),
        "candidates": asked.candidates,
        "verdicts": len(done),
        "complete": len(done) == asked.candidates,
        "wrong_answers": len(wrong),
        "states": sorted(str(job.state) for job in jobs.values()),
        "first_verdict_s": first_s,
        "rest_s": rest_s,
        "verdicts_per_minute_warm": 60 * (len(done) - 1) / rest_s if rest_s > 0 else None,
        "seconds": [
            {**(job.result.seconds if job.result else {}), "waited": job.waited_s, "ran": job.ran_s}
            for job in done.values()
        ],
        "unended": [job.lines[-1:] for job in jobs.values() if not job.state.ended],
        "rewards": [job.result.reward if job.result else None for job in jobs.values()],
        "details": [job.result.detail[:200] for i, job in done.items() if i in wrong and job.result],
        "lost": [
            job.result.infrastructure for job in jobs.values() if job.result and job.result.infrastructure
        ],
        "errors": [dict(job.error) for job in jobs.values() if job.error],
        "metrics": plain(pool.metrics()),
    }


def _submit(
    pool: LocalPool, config: JudgeConfig, number: int, callers: int, expected: dict[str, bool]
) -> None:
    snapshot, right = candidate(number, config.device)
    request = JudgeRequest(task(config.device), snapshot, config, Scope.FULL)
    expected[pool.submit(request, caller=f"caller-{number % callers}")] = right


def _wait(
    pool: LocalPool, expected: dict[str, bool], ends: dict[str, float], start: float, limit_s: float
) -> None:
    while len(ends) < len(expected) and time.monotonic() - start < limit_s:
        for job_id in expected:
            if job_id not in ends and pool.job(job_id).state.ended:
                ends[job_id] = time.monotonic() - start
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
