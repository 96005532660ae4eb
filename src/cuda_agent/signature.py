"""Inputs in words: ``float32[8,64]`` for a tensor, ``repr`` for anything else. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def describe_value(value: Any) -> str:
    """``float32[8,64]``, with ``:strides(1,8)`` behind when not contiguous; containers by item."""
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        text = f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
        if not value.is_contiguous():
            text += f":strides({','.join(map(str, value.stride()))})"
        return text
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(describe_value(v) for v in value)})"
    if isinstance(value, dict):
        return "dict(" + ", ".join(f"{k}={describe_value(v)}" for k, v in value.items()) + ")"
    return repr(value)


def describe_inputs(inputs: Sequence[Any]) -> tuple[str, ...]:
    """Each positional input in words."""
    return tuple(describe_value(value) for value in inputs)
