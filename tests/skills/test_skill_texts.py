"""The skill texts: filled in for every contract, and their examples build and are right as they stand."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.backends import get_backend
from cuda_agent.backends.base import DeviceFacts
from cuda_agent.backends.toolchain import find_cuda
from cuda_agent.config import Device, Precision, Track
from cuda_agent.judge.build import LIBRARY, build
from cuda_agent.skills import facts_text, skill_text, system_prompt, task_prompt, unknown_facts
from cuda_agent.workspace.snapshot import Snapshot

H200 = DeviceFacts(
    kind="cuda",
    name="NVIDIA H200",
    arch="sm_90",
    num_units=132,
    memory_bytes=150_000_000_000,
    cache_bytes=60 << 20,
    read_bandwidth=4.2e12,
    cache_read_bandwidth=6.5e12,
    peak_fp32_flops=6.69e13,
    driver="580.1",
)
EXAMPLE = re.compile(r"^`([\w./]+)`(,? ?[^\n:]*):[^\n]*\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECK = """
import torch
from model_new import ModelNew
x, gate = torch.randn(37, 1001) * 4, torch.randn(37, 1001)
x[0, 0], x[0, 1] = -90.0, 90.0
out = ModelNew()(x, gate)
expected = torch.nn.functional.silu(x.double()) * gate.double()
assert out.shape == x.shape and out.dtype == x.dtype
worst = ((out.double() - expected).abs() / (expected.abs() + 1e-3)).max().item()
assert worst < 1e-6, worst
"""


def text(backend: str, track: Track = Track.MATCHED, precision: Precision = Precision.DEFAULT) -> str:
    return skill_text(backend, track=track, precision=precision, facts=H200)


def examples(backend: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of the example with tensors, and those that differ in the one by addresses."""
    tensors: dict[str, bytes] = {}
    addresses: dict[str, bytes] = {}
    for name, variant, code in EXAMPLE.findall(text(backend)):
        (addresses if "addresses" in variant else tensors)[name] = code.encode()
    return tensors, {**tensors, **addresses}


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("track", list(Track))
@pytest.mark.parametrize("precision", list(Precision))
def test_every_contract_is_filled_in(backend: str, track: Track, precision: Precision) -> None:
    skill = " ".join(text(backend, track, precision).split())
    assert "@@" not in skill
    assert "NVIDIA H200" in skill and "4.2 TB/s" in skill and "60.0 MiB" in skill
    assert ("atol = rtol = 1e-2" in skill) == (track is Track.PAPER)
    assert ("float64 run" in skill) == (track is Track.MATCHED)
    assert ("--use_fast_math" in skill) == (track is Track.PAPER and backend == "cuda")
    for line in ("utils/compile.sh", "utils.verification", "utils.profiling", "[PASS] verify success"):
        assert line in skill


def test_precisions_are_told_apart() -> None:
    texts = {text("cuda", precision=precision) for precision in Precision}
    assert len(texts) == 3
    assert "TF32 off" in text("cuda", precision=Precision.FP32)


def test_unknown_facts_are_said_to_be_unknown() -> None:
    table = facts_text(unknown_facts("cuda"))
    assert table.count("unknown") >= 6 and "None" not in table and "| 0" not in table


def test_prompts_name_the_work() -> None:
    cpu = task_prompt("cpu", track=Track.MATCHED, precision=Precision.FP32)
    cuda = task_prompt("cuda", track=Track.PAPER, precision=Precision.DEFAULT)
    assert "kernels/*.cpp" in cpu and "`fp32`" in cpu
    assert "kernels/*.cu" in cuda and "`paper`" in cuda and "precision" not in cuda
    assert "SKILL.md" in system_prompt() and "@@" not in cpu + cuda + system_prompt()


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_examples_are_found_in_the_text(backend: str) -> None:
    tensors, addresses = examples(backend)
    suffix = "cu" if backend == "cuda" else "cpp"
    assert set(tensors) == {f"kernels/gated_silu.{suffix}", "kernels/gated_silu_binding.cpp", "model_new.py"}
    assert set(addresses) == set(tensors)
    assert b"torch/types.h" in tensors["kernels/gated_silu_binding.cpp"]
    assert b"torch/" not in addresses["kernels/gated_silu_binding.cpp"]


def build_example(files: dict[str, bytes], backend: str, folder: Path) -> None:
    outcome = build(
        Snapshot(files), get_backend(Device(backend)), track=Track.MATCHED, folder=folder, limit_s=300
    )
    assert outcome.ok, outcome.message
    assert (folder / LIBRARY).is_file()


@pytest.mark.parametrize("form", ["addresses", pytest.param("tensors", marks=pytest.mark.slow)])
def test_cpu_example_builds_and_is_right(form: str, tmp_path: Path) -> None:
    build_example(examples("cpu")[form == "addresses"], "cpu", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("march", ["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_cpu_example_loop_is_simd_code(march: str, tmp_path: Path) -> None:
    """The text promises that its exp is vectorised: the compiler's own report must say so on any CPU."""
    from cuda_agent.backends.toolchain import find_cxx

    source = tmp_path / "gated_silu.cpp"
    source.write_bytes(examples("cpu")[0]["kernels/gated_silu.cpp"])
    if march != "native" and platform.machine() != "x86_64":
        pytest.skip("an instruction set of x86-64")
    argv = [str(find_cxx()), "-O3", f"-march={march}", "-fopenmp", "-fopt-info-vec", "-c", str(source)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "loop vectorized" in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("form", ["addresses", "tensors"])
def test_cuda_example_builds_and_imports_without_a_gpu(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_cuda() is None:
        pytest.skip("no nvcc on this machine")
    monkeypatch.setenv("CUDA_AGENT_ARCH", "sm_90")
    build_example(examples("cuda")[form == "addresses"], "cuda", tmp_path)
    if form == "addresses":  # the other needs the CUDA half of PyTorch at load
        subprocess.run(
            [sys.executable, "-c", "import torch, cuda_extension as c; c.gated_silu"],
            cwd=tmp_path,
            check=True,
        )
