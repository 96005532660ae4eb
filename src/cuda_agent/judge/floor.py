"""The memory floor: no kernel is faster than its bytes (docs/judging.md, "Time, and what can be trusted").

Refused only below (output bytes + bytes of inputs shown to matter) / (1.15 x measured read peak), and
only when a second measurement says the same. Arithmetic is not held against a peak: FLOPs counted from
a graph need not be spent.
"""

from __future__ import annotations

from typing import Any

from cuda_agent.judge.exchange import leaves

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
    for tensor in leaves(value):
        num = tensor.element_size()
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            num *= size if stride or not size else 1
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        seen[key] = num
    return sum(seen.values())


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
