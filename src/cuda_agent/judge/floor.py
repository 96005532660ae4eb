"""The memory floor: no kernel is faster than its bytes (docs/judging.md, "Time").

Refused only below (output bytes + bytes of inputs shown to matter) / (1.15 x measured read peak), and
only when a second measurement says the same. Arithmetic is not held against a peak: FLOPs counted from
a graph need not be spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

MARGIN = 1.15
"""How much faster than the measured read peak a kernel may seem."""

_CACHE_BYTES_PER_S_PER_CORE = 300e9
"""No core loads more from its caches: 64 bytes a cycle at 4.7 GHz."""


def tensor_bytes(value: Any) -> int:
    """Bytes of the distinct elements of all tensors in nested lists, tuples and dicts.

    Dimensions of stride 0 (``expand``) count once; views of one storage that hold the same elements
    count once.
    """
    seen: dict[tuple[Any, ...], int] = {}
    for tensor in _tensors(value):
        num = tensor.element_size()
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            num *= size if stride or not size else 1
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        seen[key] = num
    return sum(seen.values())


def moved_bytes(inputs: Sequence[object], outputs: object, *, matters: Sequence[bool] | None = None) -> int:
    """Least bytes a call must move: outputs, and the inputs shown to matter.

    Args:
        inputs: arguments of forward.
        outputs: what it returned.
        matters: for each input, whether changing it was seen to change the output; ``None`` counts
            no input, since a kernel need not read what does not matter.

    Raises:
        ValueError: ``matters`` has another length than ``inputs``.
    """
    if matters is None:
        return tensor_bytes(outputs)
    if len(matters) != len(inputs):
        raise ValueError(f"{len(matters)} flags for {len(inputs)} inputs")
    used = [item for item, matter in zip(inputs, matters, strict=True) if matter]
    return tensor_bytes(outputs) + tensor_bytes(used)


def effective_bandwidth(num_bytes: int, *, memory: float, cache_bytes: int, num_cores: int) -> float:
    """Bandwidth to hold a CPU call against, bytes per second.

    The first ``cache_bytes`` may come from cache, however warm: they are held against what the cores
    can load at all; only the rest must come from memory.

    Args:
        num_bytes: moved by the call.
        memory: measured read peak of memory, bytes per second.
        cache_bytes: last-level cache.
        num_cores: cores that run the kernel.
    """
    cache = max(memory, _CACHE_BYTES_PER_S_PER_CORE * num_cores)
    cached = min(num_bytes, cache_bytes)
    seconds = cached / cache + (num_bytes - cached) / memory
    return num_bytes / seconds if seconds else cache


def floor_us(num_bytes: int, read_bandwidth: float) -> float:
    """Least believable time of a call that moves ``num_bytes``, microseconds.

    Args:
        num_bytes: moved.
        read_bandwidth: bytes per second, positive.
    """
    return num_bytes / (MARGIN * read_bandwidth) * 1e6


def below_floor(time_us: float, num_bytes: int, read_bandwidth: float) -> bool:
    """Whether a time is too short for its bytes."""
    return time_us < floor_us(num_bytes, read_bandwidth)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
