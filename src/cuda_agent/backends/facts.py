"""Device facts: read off the device, and measured once in a process of its own, then cached.

The measured peaks are lower bounds of the true ones: a busy machine measures less. Therefore a figure
taken under load is measured again at the next use, and the larger one is kept.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda_agent
from cuda_agent.backends import toolchain
from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import cache_dir
from cuda_agent.errors import InfrastructureError, ToolchainError

_PROBE_LIMIT_S = 120.0
_CPU_PROBE, _CUDA_PROBE = "probe_cpu.cpp", "probe_cuda.cu"
_HERE = Path(__file__).parent
# FP32 lanes of one SM by compute capability (CUDA C++ Programming Guide, arithmetic throughput table).
_FP32_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
_DEFAULT_FP32_LANES = 128


@functools.cache
def cpu_identity() -> str:
    """Model name and instruction sets: what ``-march=native`` means on this machine."""
    text = _read("/proc/cpuinfo")
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    digest = hashlib.sha256((flags[1] if flags else "").encode()).hexdigest()[:12]
    return f"{model[1].strip() if model else os.uname().machine} {digest}"


def cpu_facts(cxx: Path) -> DeviceFacts:
    """Facts of this machine's processor, over the cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    key = ("cpu", cpu_identity(), str(cores), toolchain.compiler_version(cxx), _probe_version(_CPU_PROBE))
    return _cached(key, lambda: _measure_cpu(cxx, cores))


def cuda_facts(toolkit: toolchain.CudaToolkit, gpu: int, identity: Mapping[str, str]) -> DeviceFacts:
    """Facts of GPU ``gpu`` (index as CUDA counts); ``identity`` is what nvidia-smi says of it."""
    key = ("cuda", *sorted(identity.values()), str(gpu), toolkit.version, _probe_version(_CUDA_PROBE))
    return _cached(key, lambda: _measure_cuda(toolkit, gpu, identity))


def simd_level() -> str:
    """``avx512``, ``avx2``, ``sse2``, or the machine's name elsewhere."""
    text = _read("/proc/cpuinfo")
    for flag, level in (("avx512f", "avx512"), ("avx2", "avx2"), ("sse2", "sse2"), ("asimd", "neon")):
        if re.search(rf"\b{flag}\b", text):
            return level
    return os.uname().machine


def _measure_cpu(cxx: Path, cores: int) -> DeviceFacts:
    flags = ["-O3", "-march=native", "-fopenmp", "-std=c++17", "-w"]
    memory = _memory_bytes()
    cache = _last_level_cache_bytes()
    # Far beyond the last-level cache, but never a large part of the memory.
    buffer = min(max(1 << 29, 8 * (cache or 0)), memory // 4)
    measured = _run_probe([str(cxx), *flags], _CPU_PROBE, [str(cores), str(buffer)])
    return DeviceFacts(
        kind="cpu",
        name=cpu_identity().rsplit(" ", 1)[0],
        arch=simd_level(),
        num_units=cores,
        memory_bytes=memory,
        cache_bytes=cache,
        read_bandwidth=measured["read"],
        # What is in the cache reads no slower: less is a sample that others on the machine spoilt.
        cache_read_bandwidth=max(measured["cache_read"], measured["read"]),
        peak_fp32_flops=measured["flops"],
    )


def _measure_cuda(toolkit: toolchain.CudaToolkit, gpu: int, identity: Mapping[str, str]) -> DeviceFacts:
    measured = _run_probe([str(toolkit.nvcc), "-O3", "-arch=native"], _CUDA_PROBE, [str(gpu)])
    capability = (measured["major"], measured["minor"])
    lanes = _FP32_LANES.get(capability, _DEFAULT_FP32_LANES)
    return DeviceFacts(
        kind="cuda",
        name=measured["name"],
        arch=f"sm_{capability[0]}{capability[1]}",
        num_units=measured["num_units"],
        memory_bytes=measured["memory_bytes"],
        cache_bytes=measured["cache_bytes"],
        read_bandwidth=measured["read"],
        cache_read_bandwidth=measured["cache_read"],
        peak_fp32_flops=2.0 * lanes * measured["num_units"] * measured["clock_khz"] * 1e3,
        driver=identity.get("driver_version"),
    )


def _probe_version(source: str) -> str:
    """Changes with the probe and with the package: figures of another probe are not these."""
    digest = hashlib.sha256((_HERE / source).read_bytes()).hexdigest()[:12]
    return f"{cuda_agent.__version__} {digest}"


def _run_probe(compiler: list[str], source: str, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cuda-agent-probe-") as folder:
        program = str(Path(folder) / "probe")
        _run([*compiler, str(_HERE / source), "-o", program])
        report: dict[str, Any] = json.loads(_run([program, *arguments]))
        return report


def _run(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"cannot measure the device: {error}", _PROBE_REMEDY) from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise ToolchainError(f"cannot measure the device: {Path(argv[0]).name}: {lines[0]}", _PROBE_REMEDY)
    return done.stdout


_PROBE_REMEDY = "Run cuda-agent doctor to see what this machine lacks."


def _cached(key: tuple[str, ...], measure: Callable[[], DeviceFacts]) -> DeviceFacts:
    path = cache_dir() / "facts" / (hashlib.sha256("\n".join(key).encode()).hexdigest()[:16] + ".json")
    known = _load(path)
    if known is not None and not known[1]:
        return known[0]
    with _locked(path):  # two probes at once would each measure half the bandwidth
        known = _load(path)
        if known is not None and not known[1]:
            return known[0]
        busy = _machine_is_busy()
        facts = measure()
        if known is not None:
            facts = _larger(facts, known[0])
        _store(path, facts, provisional=busy and known is None)
    return facts


def _load(path: Path) -> tuple[DeviceFacts, bool] | None:
    """Facts on file and whether they are provisional; ``None`` when absent or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return DeviceFacts(**data["facts"]), bool(data["provisional"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, facts: DeviceFacts, *, provisional: bool) -> None:
    record = {"facts": dataclasses.asdict(facts), "provisional": provisional}
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise _cache_error(path, error) from None


def _larger(new: DeviceFacts, old: DeviceFacts) -> DeviceFacts:
    """``new`` with each measured peak the larger of both."""

    def peak(name: str) -> float | None:
        return max(getattr(new, name) or 0.0, getattr(old, name) or 0.0) or None

    return dataclasses.replace(
        new,
        read_bandwidth=peak("read_bandwidth"),
        cache_read_bandwidth=peak("cache_read_bandwidth"),
        peak_fp32_flops=peak("peak_fp32_flops"),
    )


def _machine_is_busy() -> bool:
    return os.getloadavg()[0] > 0.5 * len(os.sched_getaffinity(0))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the entry's lock; the kernel frees it when the holder dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise _cache_error(path, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache_error(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"cannot write the cache {path.parent}: {error.strerror}",
        "Free some disk space, or set CUDA_AGENT_CACHE to a folder you can write.",
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _last_level_cache_bytes() -> int | None:
    """Size of the largest-numbered cache level, all its instances together."""
    instances: dict[tuple[int, str], int] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        size = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size").strip())
        level = _read(index / "level").strip()
        if size and level.isdigit():
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20}[size[2]]
            instances[(int(level), _read(index / "shared_cpu_list").strip())] = int(size[1]) * scale
    last = max((level for level, _ in instances), default=0)
    return sum(size for (level, _), size in instances.items() if level == last) or None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
