"""What NVML says of one GPU: who holds a context on it, who is busy there, and what slows its clocks.

NVIDIA's management library (libnvidia-ml.so.1, nvml.h) through ctypes; standard library only. It comes with
the driver, so a machine without a GPU has none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
MOST_PROCESSES = 1024
_MOST_SAMPLES = 4096
# nvmlReturn_t
_SUCCESS = 0
_ERRORS = {
    1: "not initialised",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "too many entries",
    9: "the driver is not loaded",
    13: "no such function",
    15: "the GPU is lost",
    18: "library and driver differ in version",
}

# nvmlClocksEventReasons. Idle, application and display clocks are settings or rest, no disturbance.
SLOWDOWNS: Mapping[int, str] = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clocks held down by heat or by the power supply: by what is around the GPU, not by the kernel alone."""
POWER_CAP = 0x4
"""The GPU's own power limit: heavy kernels reach it on a healthy machine of one user, eager's too."""


class NvmlError(Exception):
    """The library is not here, or it refused."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, second version."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Utilisation(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("timestamp", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


class Gpu:
    """One GPU, asked through NVML. Methods may be called from any thread.

    Args:
        uuid: as nvidia-smi names the GPU (``GPU-...`` or ``MIG-...``).
        library: file name of the library.

    Raises:
        NvmlError: no library, no driver, or no such GPU.
    """

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        try:
            self._nvml: Any = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"{library} does not load: {error}") from None
        self._call("nvmlInit_v2")
        self._open = True
        self._handle = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))
        except NvmlError:
            self.close()
            raise

    def compute_processes(self) -> list[int]:
        """Process ids that hold a context, as the driver numbers them (see ``judge/bystanders.py``).

        Raises:
            NvmlError: the library refused.
        """
        count = ctypes.c_uint(MOST_PROCESSES)
        infos = (_Process * MOST_PROCESSES)()
        names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        self._call(self._first(names), self._handle, ctypes.byref(count), infos)
        return [info.pid for info in infos[: count.value]]

    def slowdowns(self) -> int:
        """Bits of nvmlClocksEventReasons that hold now.

        Raises:
            NvmlError: the library refused.
        """
        reasons = ctypes.c_ulonglong(0)
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        self._call(self._first(names), self._handle, ctypes.byref(reasons))
        return reasons.value

    def busy(self, since_us: int) -> dict[int, int] | None:
        """Largest share of the multiprocessors' time that each process took, percent, since a moment.

        Args:
            since_us: microseconds of the system's clock (``time.time()``).

        Returns:
            By process id; ``None`` where the driver keeps no such samples, or none was taken since.
        """
        count = ctypes.c_uint(_MOST_SAMPLES)
        samples = (_Utilisation * _MOST_SAMPLES)()
        arguments = (self._handle, samples, ctypes.byref(count), ctypes.c_ulonglong(since_us))
        try:
            self._call("nvmlDeviceGetProcessUtilization", *arguments)
        except NvmlError:
            return None
        taken: dict[int, int] = {}
        for sample in samples[: count.value]:
            if sample.timestamp >= since_us:
                taken[sample.pid] = max(taken.get(sample.pid, 0), sample.sm)
        return taken or None

    def close(self) -> None:
        """Let the library go; may run twice."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _first(self, names: tuple[str, ...]) -> str:
        """The first of these functions that the library has, else the last."""
        return next((name for name in names if hasattr(self._nvml, name)), names[-1])

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            status = getattr(self._nvml, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"{name}: no such function") from None
        if status != _SUCCESS:
            raise NvmlError(f"{name}: {_ERRORS.get(status, f'error {status}')}")
