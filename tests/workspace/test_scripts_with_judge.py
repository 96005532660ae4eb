"""A workspace's commands with the real judge: through the service, and by hand without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.config import Device, JudgeConfig, Precision, Track
from cuda_agent.judge.session import JudgeSession
from cuda_agent.result import Result, Stage
from cuda_agent.task import Task
from cuda_agent.workspace.layout import create
from cuda_agent.workspace.service import JudgeService

CODE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 3 + 1
def get_inputs(): return [torch.randn(64, 1000)]
def get_init_inputs(): return []
"""
KERNEL = """
extern "C" void affine(const float* x, float* y, long n) {
#pragma omp parallel for simd
    for (long i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * SCALE + 1;
}
"""
BINDING = """
#include <cstdint>
#include "../binding_registry.h"
extern "C" void affine(const float*, float*, long);
static void run(std::uintptr_t x, std::uintptr_t y, long n) {
    affine(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n);
}
static void bind(pybind11::module& m) { m.def("affine", &run); }
REGISTER_BINDING(affine, bind);
"""
MODEL_NEW = """
import torch
from torch import nn
import cuda_extension
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.affine(x.data_ptr(), y.data_ptr(), x.numel())
        return y
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    create(folder, Task(code=CODE), backend="cpu", track=Track.MATCHED, precision=Precision.DEFAULT)
    write(folder, scale=3)
    return folder


def write(folder: Path, *, scale: int) -> None:
    (folder / "kernels" / "affine.cpp").write_text(KERNEL.replace("SCALE", str(scale)))
    (folder / "kernels" / "affine_binding.cpp").write_text(BINDING)
    (folder / "model_new.py").write_text(MODEL_NEW)


def commands(workspace: Path, env: dict[str, str], *names: str) -> list[subprocess.CompletedProcess[str]]:
    argvs = {
        "compile": ["bash", "utils/compile.sh"],
        "verify": ["python3", "-m", "utils.verification"],
        "profile": ["python3", "-m", "utils.profiling"],
    }
    full = {**os.environ, **env}
    return [
        subprocess.run(
            argvs[name], cwd=workspace, env=full, capture_output=True, text=True, timeout=300, check=False
        )
        for name in names
    ]


@pytest.mark.slow
def test_right_and_wrong_candidates_through_the_service(workspace: Path) -> None:
    results: list[Result] = []

    config = JudgeConfig(device=Device.CPU, timing_budget_s=1.0)
    with (
        JudgeSession(Task(code=CODE), config) as session,
        JudgeService(
            workspace,
            lambda scope, snapshot, say: session.judge(snapshot, scope, say),
            on_result=lambda _scope, _snapshot, result: results.append(result),
        ) as service,
    ):
        right = commands(workspace, service.env, "compile", "verify", "profile")
        write(workspace, scale=4)
        (wrong,) = commands(workspace, service.env, "verify")
    assert [done.returncode for done in right] == [0, 0, 0], [done.stdout for done in right]
    assert right[0].stdout.startswith("Compile success: cuda_extension.so\n[TIME] Compilation took ")
    assert right[1].stdout.splitlines()[-1] == "[PASS] verify success"
    assert any(line.startswith("Torch Baseline: ") for line in right[2].stdout.splitlines())
    assert wrong.returncode == 1 and "[FAIL] check 1/5" in wrong.stdout
    assert "verify success" not in wrong.stdout and "Traceback" not in wrong.stdout + wrong.stderr
    assert [r.correct for r in results] == [None, True, True, False]
    assert results[0].stage is Stage.LOAD


@pytest.mark.slow
def test_by_hand_with_a_python_that_lacks_cuda_agent(workspace: Path, tmp_path: Path) -> None:
    # The first python3 on the path cannot import cuda_agent: the scripts fall back on the one that
    # laid the workspace out.
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "python3").write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')  # type: ignore[attr-defined]
    (bin_dir / "python3").chmod(0o755)
    env = {"PATH": f"{bin_dir}:/usr/bin:/bin", "PYTHONPATH": ""}
    (done,) = commands(workspace, {**env, "CUDA_AGENT_SOCKET": ""}, "verify")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines == [*(f"[PASS] check {i}/5" for i in range(1, 6)), "[PASS] verify success"]
