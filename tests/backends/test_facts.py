"""Device facts of the machine the tests run on: measured once, plausible, kept."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from cuda_agent.backends import facts as facts_module
from cuda_agent.backends import get_backend
from cuda_agent.backends.cuda import list_gpus
from cuda_agent.backends.facts import simd_level
from cuda_agent.config import Device

PROBE = Path(facts_module.__file__).with_name("probe_cpu.cpp")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    return tmp_path


def test_cpu_facts_are_measured_once_and_plausible(cache: Path) -> None:
    backend = get_backend(Device.CPU)
    facts = backend.facts()
    assert facts.kind == "cpu" and facts.name and facts.num_units == len(os.sched_getaffinity(0))
    assert facts.memory_bytes > 1 << 30
    # Any machine of this century; the upper bounds catch a loop that the compiler removed.
    assert 1e9 < (facts.read_bandwidth or 0) < 2e12
    assert (facts.read_bandwidth or 0) <= (facts.cache_read_bandwidth or 0) < 1e14
    assert 1e9 < (facts.peak_fp32_flops or 0) < 1e14
    (entry,) = cache.glob("facts/*.json")
    record = json.loads(entry.read_text())
    record["provisional"] = False
    entry.write_text(json.dumps(record))
    begin = time.monotonic()
    assert backend.facts() == facts
    assert time.monotonic() - begin < 0.1


@pytest.mark.skipif(simd_level() != "avx512", reason="compares AVX-512 with AVX2")
def test_the_probe_fills_narrower_registers_too(tmp_path: Path) -> None:
    """Vectors wider than the registers went through memory: a tenth of the peak on AVX2 machines."""
    best = {}
    for march in ("x86-64-v3", "x86-64-v4"):
        program = str(tmp_path / march)
        argv = ["g++", "-O3", f"-march={march}", "-fopenmp", "-std=c++17", str(PROBE), "-o", program]
        subprocess.run(argv, check=True)
        runs = [json.loads(subprocess.check_output([program, "1", str(1 << 26)])) for _ in range(3)]
        best[march] = {key: max(run[key] for run in runs) for key in ("cache_read", "flops")}
    for key, peak in best["x86-64-v4"].items():
        assert best["x86-64-v3"][key] > 0.3 * peak, key


def test_figures_taken_under_load_are_measured_again_and_the_larger_kept(cache: Path) -> None:
    backend = get_backend(Device.CPU)
    backend.facts()
    (entry,) = cache.glob("facts/*.json")
    record = json.loads(entry.read_text())
    record["facts"]["read_bandwidth"] = 1e15
    record["facts"]["cache_read_bandwidth"] = 1.0
    record["provisional"] = True
    entry.write_text(json.dumps(record))
    again = backend.facts()
    assert again.read_bandwidth == 1e15
    assert (again.cache_read_bandwidth or 0) > 1e9
    assert json.loads(entry.read_text())["provisional"] is False


def test_a_broken_entry_is_measured_anew(cache: Path) -> None:
    backend = get_backend(Device.CPU)
    backend.facts()
    (entry,) = cache.glob("facts/*.json")
    entry.write_text('{"facts": {"kind": "cpu"')
    assert (backend.facts().read_bandwidth or 0) > 1e9


@pytest.mark.gpu
@pytest.mark.skipif(not list_gpus(), reason="no GPU answers")
def test_gpu_facts_agree_with_pytorch(cache: Path) -> None:
    import torch

    facts = get_backend(Device.CUDA).facts()
    properties = torch.cuda.get_device_properties(0)
    assert facts.name == properties.name and facts.num_units == properties.multi_processor_count
    assert facts.arch == f"sm_{properties.major}{properties.minor}"
    assert facts.cache_bytes == properties.L2_cache_size
    assert 1e11 < (facts.read_bandwidth or 0) < (facts.cache_read_bandwidth or 0)
    assert (facts.peak_fp32_flops or 0) > 1e12
