"""Finding compilers and PyTorch, and choosing a backend, on this machine and on lesser ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.backends import CpuBackend, CudaBackend, get_backend, resolve_device, toolchain
from cuda_agent.backends.cuda import _visible, parse_arch
from cuda_agent.config import Device, Track
from cuda_agent.errors import ToolchainError

GPUS = [{"index": str(i), "uuid": f"GPU-{letter * 4}-x"} for i, letter in enumerate("abc")]


def test_pytorch_is_read_without_importing_it() -> None:
    import torch

    found = toolchain.find_torch()
    assert found is not None
    assert found.version == torch.__version__ and found.cuda == torch.version.cuda
    assert (found.include_dirs[0] / "pybind11" / "pybind11.h").is_file()
    assert (found.include_dirs[1] / "torch" / "types.h").is_file()


def test_choosing_a_backend_imports_no_torch() -> None:
    script = (
        "import sys\nfrom cuda_agent.backends import get_backend\nfrom cuda_agent.config import Device\n"
        "get_backend(Device.CPU)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def bare(tmp_path: Path, script: str, **variables: str) -> str:
    """What a script prints where the path holds no program."""
    env = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables}
    preamble = "from cuda_agent.backends import get_backend\nfrom cuda_agent.config import Device\n"
    done = subprocess.run(
        [sys.executable, "-c", preamble + script], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_missing_compiler_is_named_with_the_package(tmp_path: Path) -> None:
    shown = bare(tmp_path, "get_backend(Device.CPU)")
    assert "ToolchainError: no C++ compiler (g++). Install one: apt-get install -y g++" in shown


def test_cuda_without_a_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_agent.backends.cuda import list_gpus

    if list_gpus():
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("CUDA_AGENT_ARCH", raising=False)
    with pytest.raises(ToolchainError, match=r"--device cpu|nvcc"):
        get_backend(Device.CUDA)
    assert resolve_device(Device.AUTO) is Device.CPU
    assert isinstance(get_backend(Device.AUTO), CpuBackend)
    with pytest.raises(ToolchainError, match="no NVIDIA GPU answers"):
        CudaBackend().facts()


@pytest.mark.parametrize(
    ("text", "arch"),
    [("sm_90", "sm_90"), ("9.0", "sm_90"), ("90a", "sm_90a"), ("compute_100", "sm_100"), ("12.0", "sm_120")],
)
def test_architectures_are_read_in_every_spelling(text: str, arch: str) -> None:
    assert parse_arch(text) == arch


@pytest.mark.parametrize("text", ["", "hopper", "sm_", "9", "sm_90x", "sm_90; rm"])
def test_nonsense_architectures_are_refused(text: str) -> None:
    with pytest.raises(ToolchainError, match="Write it as sm_90"):
        parse_arch(text)


@pytest.mark.parametrize(
    ("setting", "seen"),
    [(None, "012"), ("", ""), ("2,0", "20"), ("GPU-bbbb", "1"), ("1,-1,0", "1"), ("7", "")],
)
def test_visible_devices_follow_cudas_rule(setting: str | None, seen: str) -> None:
    assert "".join(g["index"] for g in _visible(GPUS, setting)) == seen


def cuda_or_skip(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    if toolchain.find_cuda() is None:
        pytest.skip("no nvcc on this machine")
    monkeypatch.setenv("CUDA_AGENT_ARCH", "sm_90")
    backend = get_backend(Device.CUDA)
    assert isinstance(backend, CudaBackend)
    return backend


def test_nvcc_flags_are_the_tracks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = cuda_or_skip(monkeypatch)
    source, output = tmp_path / "kernels" / "a.cu", tmp_path / "a.o"
    matched = backend.compile_step(source, output, root=tmp_path, track=Track.MATCHED).argv
    paper = backend.compile_step(source, output, root=tmp_path, track=Track.PAPER).argv
    assert "--use_fast_math" not in matched and "--use_fast_math" in paper
    assert {"-O3", "kernels/a.cu"} <= set(matched)
    host = backend.compile_step(source.with_suffix(".cpp"), output, root=tmp_path, track=Track.PAPER).argv
    assert "--use_fast_math" not in host and host[0] == str(toolchain.find_cxx())


def test_nvcc_targets_the_whole_hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = cuda_or_skip(monkeypatch)
    (tmp_path / "kernels").mkdir()
    # setmaxnreg exists on sm_90a only: it shows that the architecture's own features are on.
    source = tmp_path / "kernels" / "a.cu"
    source.write_text('__global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }\n')
    step = backend.compile_step(source, tmp_path / "a.o", root=tmp_path, track=Track.MATCHED)
    done = subprocess.run(step.argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
