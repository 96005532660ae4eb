"""Trees of tensors in memory that two processes share, and their description as JSON.

A value is a tensor, a number, a bool, a string, ``None``, a torch dtype or device, or a list, tuple or
dict of values. :func:`describe` turns it into a plan (JSON) with an offset for each tensor; the tensors'
bytes lie in a :class:`Block`, host memory (memfd) or device memory, whose descriptor travels.
Strides are kept, so a transposed input stays transposed.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from cuda_agent.judge.devicemem import DeviceMemory

ALIGNMENT = 512
Plan = dict[str, Any]


class NotExchangeable(Exception):
    """A value that is no tensor, number, string or container of such."""


class Block:
    """Shared memory of ``nbytes`` bytes, host or device; closing it invalidates its tensors.

    The descriptor of host memory is closed with the block, also when that is dropped unclosed; the memory
    goes when no tensor lies in it any more.
    """

    def __init__(self, nbytes: int, *, device: str, fd: int | None = None) -> None:
        """Create a block, or open the one behind ``fd`` (ownership passes to the block).

        Args:
            nbytes: size, bytes.
            device: ``cpu`` or ``cuda:N``: where the memory lies.
            fd: descriptor received from the other process.

        Raises:
            DeviceMemoryError: the driver refused.
            OSError: no memory, or a descriptor too short.
        """
        self.nbytes = nbytes
        self.device = device
        self._memory: DeviceMemory | None = None
        self._fd = -1
        self._close_fd: Callable[[], object] = int  # nothing to close yet
        if device == "cpu":
            self._open_host(fd)
        else:
            self._open_device(fd)

    def _open_host(self, fd: int | None) -> None:
        size = max(1, self.nbytes)
        self._fd = os.memfd_create("cuda-agent") if fd is None else fd
        self._close_fd = weakref.finalize(self, os.close, self._fd)
        if fd is None:
            os.ftruncate(self._fd, size)
        elif os.fstat(fd).st_size < size:
            self._close_fd()
            raise OSError("shared memory is shorter than its description")
        # The map, which has a descriptor of its own, belongs to the tensors in it alone.
        self.bytes = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    def _open_device(self, fd: int | None) -> None:
        index = torch.device(self.device).index or 0
        with torch.cuda.device(index):
            torch.cuda.current_stream()
            torch.zeros(1, device=self.device)  # the primary context must be current
            self._memory = DeviceMemory(self.nbytes, device=index, fd=fd)
            self.bytes = torch.as_tensor(self._memory, device=self.device)

    @property
    def fd(self) -> int:
        """Descriptor to send; stays owned by the block."""
        return self._fd if self._memory is None else self._memory.fd

    def close(self) -> None:
        """Release the memory; may run twice."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self._memory is not None:
            torch.cuda.synchronize()
            self._memory.close()
        self._close_fd()
        self._fd = -1

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe(value: Any) -> Plan:
    """The JSON plan of a value; ``plan["nbytes"]`` is the size of the block it needs.

    Raises:
        NotExchangeable: see the module's docstring.
    """
    offset = [0]
    root = _describe(value, offset)
    return {"root": root, "nbytes": offset[0]}


def _describe(value: Any, offset: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value, offset)
    if value is None or isinstance(value, bool | int | str):
        return {"value": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": True}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(item, offset) for item in value]}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotExchangeable("a dict whose keys are not strings")
        return {"dict": {key: _describe(item, offset) for key, item in value.items()}}
    raise NotExchangeable(f"a value of type {type(value).__name__}")


def _describe_tensor(tensor: torch.Tensor, offset: list[int]) -> dict[str, Any]:
    if tensor.is_quantized:
        raise NotExchangeable("a quantized tensor")
    if tensor.layout is not torch.strided:
        raise NotExchangeable(f"a tensor of layout {tensor.layout}")
    extent = extent_of(tensor.shape, tensor.stride())
    leaf = {
        "tensor": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": offset[0],
        "extent": extent,
    }
    nbytes = extent * tensor.element_size()
    offset[0] += (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return leaf


def extent_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of storage from the first to the last that a strided view touches."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value in plan order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)


def plan_leaves(node: Any) -> Iterator[dict[str, Any]]:
    """The tensor entries of a plan's root, in the same order."""
    if "tensor" in node:
        yield node
    for kind in ("list", "tuple"):
        for item in node.get(kind, ()):
            yield from plan_leaves(item)
    for item in node.get("dict", {}).values():
        yield from plan_leaves(item)


def write(value: Any, plan: Plan, block: Block) -> None:
    """Copy a value's tensors into a block as its plan says (stream-ordered on a device)."""
    for tensor, leaf in zip(leaves(value), plan_leaves(plan["root"]), strict=True):
        source = tensor.detach()
        if leaf["extent"] == 0:
            continue
        flat = source.as_strided((leaf["extent"],), (1,), source.storage_offset())
        _slot(leaf, block).copy_(flat)


def read(plan: Plan, block: Block | None, *, device: str | None = None, copy: bool = True) -> Any:
    """Rebuild a value from its plan and block.

    Args:
        plan: from :func:`describe`.
        block: where the bytes lie; ``None`` for a value without tensors.
        device: where the tensors shall lie (default: where the block lies).
        copy: give the tensors memory of their own; else they are views of the block.

    Raises:
        ValueError: the plan does not fit the block, or is malformed.
    """
    return _read(plan["root"], block, device, copy)


def _read(node: Any, block: Block | None, device: str | None, copy: bool) -> Any:
    if "value" in node:
        return node["value"]
    if "float" in node:
        return float.fromhex(node["float"])
    if "dtype" in node:
        return _dtype(node["dtype"])
    if "device" in node:
        return torch.device(device or (block.device if block else "cpu"))
    if "list" in node:
        return [_read(item, block, device, copy) for item in node["list"]]
    if "tuple" in node:
        return tuple(_read(item, block, device, copy) for item in node["tuple"])
    if "dict" in node:
        return {key: _read(item, block, device, copy) for key, item in node["dict"].items()}
    if "tensor" in node and block is not None:
        return _read_tensor(node, block, device, copy)
    raise ValueError("malformed plan")


def _read_tensor(leaf: Mapping[str, Any], block: Block, device: str | None, copy: bool) -> torch.Tensor:
    shape, stride = leaf["shape"], leaf["stride"]
    if leaf["extent"] != extent_of(shape, stride) or any(step < 0 for step in stride):
        raise ValueError("a tensor whose extent does not fit its shape")
    flat = _slot(leaf, block)
    if device is not None and torch.device(device) != flat.device:
        flat = flat.to(device)
    elif copy:
        flat = flat.clone()
    return flat.as_strided(shape, stride)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("malformed plan")
    return dtype


def _slot(leaf: Mapping[str, Any], block: Block) -> torch.Tensor:
    dtype = _dtype(leaf["tensor"])
    start, nbytes = leaf["offset"], leaf["extent"] * dtype.itemsize
    if start < 0 or start + nbytes > block.bytes.numel():
        raise ValueError("a plan larger than its block")
    return block.bytes[start : start + nbytes].view(dtype)
