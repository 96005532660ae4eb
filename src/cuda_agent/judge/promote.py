"""A float64 run of a module that promotes casts and dtype arguments too: the error budget's truth."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LOW = frozenset({torch.float16, torch.bfloat16, torch.float32})
_PROMOTED = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


class _Promote(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Rewrites every floating dtype argument of a dispatched operator to double precision."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: see :class:`cuda_agent.judge.guard.ComputeGuard`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*promote_dtypes(args), **promote_dtypes(kwargs or {}))


def promote_dtypes(value: Any) -> Any:
    """``value`` with low-precision dtypes (not tensors) replaced by their double counterparts."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _LOW else _PROMOTED.get(value, value)
    if isinstance(value, list | tuple):
        return type(value)(promote_dtypes(item) for item in value)
    if isinstance(value, Mapping):
        return {key: promote_dtypes(item) for key, item in value.items()}
    return value


def to_float64(value: Any) -> Any:
    """Copies of the floating tensors of a tree in float64 (complex in complex128)."""
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            return value.to(torch.complex128)
        return value.double() if value.is_floating_point() else value.clone()
    if isinstance(value, list | tuple):
        return type(value)(to_float64(item) for item in value)
    if isinstance(value, Mapping):
        return {key: to_float64(item) for key, item in value.items()}
    return value


def run_in_float64(model: torch.nn.Module, inputs: Any) -> Any:
    """Run a copy of ``model`` in float64 on copies of ``inputs``.

    Raises:
        RuntimeError: the module mixes in float32 tensors that cannot be promoted, or whatever else the
            task's code raises in float64.
    """
    model64 = copy.deepcopy(model).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Promote():
            return model64(*to_float64(inputs))
    finally:
        torch.set_default_dtype(default)
