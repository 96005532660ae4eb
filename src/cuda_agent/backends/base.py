"""The contract of a backend: toolchain, device facts, skill text. No implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuda_agent.config import Track


@dataclass(frozen=True)
class Missing:
    """Something this machine lacks, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class DeviceFacts:
    """What a device can do, as read or measured on it. Unknown values are ``None``.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        name: as the driver or /proc/cpuinfo says.
        arch: ``sm_90``, or the SIMD level (``avx2``, ``avx512``).
        num_units: SMs, or physical cores used by kernels.
        memory_bytes: device memory (host memory on cpu).
        cache_bytes: L2 (last-level cache on cpu).
        read_bandwidth: measured read peak of device memory, bytes per second.
        cache_read_bandwidth: measured read peak from cache (all units together), bytes per second.
        peak_fp32_flops: peak FP32 rate, FLOP per second (measured on cpu; units x width x clock on cuda).
        driver: driver version (cuda).
    """

    kind: str
    name: str
    arch: str
    num_units: int
    memory_bytes: int
    cache_bytes: int | None = None
    read_bandwidth: float | None = None
    peak_fp32_flops: float | None = None
    driver: str | None = None
    cache_read_bandwidth: float | None = None


@dataclass(frozen=True)
class CompileStep:
    """One compiler call: ``argv`` makes ``output`` from ``source``; run it in the folder ``root``,
    to which the source's path in ``argv`` is relative (so that messages name workspace paths)."""

    source: Path
    output: Path
    argv: tuple[str, ...]


class Backend(Protocol):
    """One kind of device."""

    @property
    def name(self) -> str:
        """``cpu`` or ``cuda``."""
        ...

    @property
    def kernel_suffix(self) -> str:
        """Suffix of a kernel source: ``.cpp`` or ``.cu``."""
        ...

    def missing(self) -> list[Missing]:
        """What a build or a run would lack here; empty when all is there."""
        ...

    def fingerprint(self) -> str:
        """Compiler, PyTorch, interpreter and target: what an object file depends on beside its sources."""
        ...

    def facts(self) -> DeviceFacts:
        """Device facts; measured once and cached by device and versions.

        Raises:
            ToolchainError: no such device here.
        """
        ...

    def compile_step(self, source: Path, output: Path, *, root: Path, track: Track) -> CompileStep:
        """Compiler call for one source of the folder ``root``, with our flags for the track."""
        ...

    def link_argv(self, objects: Sequence[Path], output: Path) -> tuple[str, ...]:
        """Linker call that makes the extension module from the objects."""
        ...
