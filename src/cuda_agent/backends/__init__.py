"""Backends: ``cuda`` is the product, ``cpu`` runs the whole loop where there is no GPU."""

from __future__ import annotations

import os

from cuda_agent.backends.base import Backend, CompileStep, DeviceFacts, Missing
from cuda_agent.backends.cpu import CpuBackend, host_missing
from cuda_agent.backends.cuda import ARCH_VARIABLE, GPU_MISSING, CudaBackend, list_gpus, require_cuda
from cuda_agent.backends.toolchain import find_torch
from cuda_agent.config import Device
from cuda_agent.errors import ToolchainError

__all__ = [
    "Backend",
    "CompileStep",
    "CpuBackend",
    "CudaBackend",
    "DeviceFacts",
    "Missing",
    "get_backend",
    "resolve_device",
]


def resolve_device(device: Device) -> Device:
    """``AUTO`` becomes ``CUDA`` where a GPU answers and PyTorch is a CUDA build, ``CPU`` otherwise."""
    if device is not Device.AUTO:
        return device
    torch = find_torch()
    usable = torch is not None and torch.cuda is not None and bool(list_gpus())
    return Device.CUDA if usable else Device.CPU


def get_backend(device: Device, *, gpu: int = 0) -> Backend:
    """The backend of a device, checked for what a build needs.

    Raises:
        ToolchainError: a compiler, PyTorch or the device is missing; the remedy says what to install.
    """
    missing = host_missing()
    if missing:
        raise ToolchainError(missing[0].what, missing[0].remedy)
    if resolve_device(device) is Device.CPU:
        return CpuBackend()
    require_cuda()
    if not list_gpus() and not os.environ.get(ARCH_VARIABLE):
        raise ToolchainError(GPU_MISSING.what, GPU_MISSING.remedy)
    return CudaBackend(gpu)
