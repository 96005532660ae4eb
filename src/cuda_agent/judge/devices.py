"""Which device a verdict is reached on, how memory is shared there, and what a worker's environment is."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import cuda_agent
from cuda_agent.config import JudgeConfig, cache_dir
from cuda_agent.judge.devicemem import DeviceMemoryError
from cuda_agent.judge.exchange import Block

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A device as the judge and its workers see it.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        device: the judge's torch device.
        worker_device: the workers' torch device (they see one GPU only).
        transport: ``device`` when device memory travels as a descriptor, else ``host``.
        num_threads: threads of CPU kernels and baselines alike.
    """

    kind: str
    device: str
    worker_device: str
    transport: str
    num_threads: int

    @property
    def block_device(self) -> str:
        """Where the judge makes shared blocks."""
        return self.device if self.transport == "device" else "cpu"

    def synchronize(self) -> None:
        """Wait for the judge's own work on the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def worker_env(self, config: JudgeConfig, *, inductor_key: str | None = None) -> Mapping[str, str]:
        """Environment of a worker: one GPU, fixed threads, private inductor cache."""
        env = {
            "OMP_NUM_THREADS": str(self.num_threads),
            "MKL_NUM_THREADS": str(self.num_threads),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
        }
        if self.kind == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            named = visible[config.gpu] if config.gpu < len(visible) and visible[0] else str(config.gpu)
            env |= {"CUDA_VISIBLE_DEVICES": named, "CUDA_MODULE_LOADING": "LAZY"}
        else:
            env |= {
                "CUDA_VISIBLE_DEVICES": "",
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "OMP_PROC_BIND": "true",
            }
        if inductor_key is not None:
            env["TORCHINDUCTOR_CACHE_DIR"] = str(inductor_dir(inductor_key))
        return env


def inductor_dir(key: str) -> Path:
    """torch.compile's cache of one task."""
    return cache_dir() / "inductor" / key


def choose_place(kind: str, config: JudgeConfig) -> Place:
    """The place for a backend's name."""
    num_threads = len(os.sched_getaffinity(0))
    if kind == "cpu":
        return Place("cpu", "cpu", "cpu", "host", num_threads)
    device = f"cuda:{config.gpu}"
    return Place("cuda", device, "cuda:0", _transport(device), num_threads)


def _transport(device: str) -> str:
    try:
        Block(1, device=device).close()
    except (DeviceMemoryError, RuntimeError) as error:
        _log.warning("device memory cannot be shared (%s): bytes travel through the host", error)
        return "host"
    return "device"


def versions(place: Place, driver: str | None) -> dict[str, str]:
    """Versions that a time depends on."""
    found = {
        "cuda_agent": cuda_agent.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if place.kind == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["driver"] = str(driver)
    return found
