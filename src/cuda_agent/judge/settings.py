"""PyTorch's process-wide settings, kept as they were before the candidate's code: read, compared, put back.

Runs inside the candidate's process: standard library and torch only.

Covers: precision of matrix products and convolutions (the older flags and the newer ``fp32_precision``), how
cuBLAS, cuDNN and oneDNN are used, deterministic algorithms, default dtype, number of threads.

Does not cover: settings that a library of the candidate's holds itself (a math mode of its own cuBLAS
handle), and flushing of denormals, which PyTorch cannot be asked about. A candidate can set them in every
call: what they would change are PyTorch's operators, which a forward may not use, so a change is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_UNREADABLE = "inconsistent"  # PyTorch's answer where older and newer flags disagree is an error
_PLAIN = (
    "float32_matmul_precision",
    "cudnn_allow_tf32",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_enabled",
    "cublas_allow_fp16_accumulation",
    "mkldnn_deterministic",
    "mkldnn_enabled",
)
"""Named as in ``torch._C._get_NAME`` and ``torch._C._set_NAME``; those that a build lacks are left out."""
_REDUCED = ("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction")
_PRECISIONS = tuple(
    (backend, operator)
    for backend, operators in (
        ("generic", ("all",)),
        ("cuda", ("all", "matmul", "conv", "rnn")),
        ("mkldnn", ("all", "matmul", "conv", "rnn")),
    )
    for operator in operators
)


class Settings:
    """The settings at the moment this is made."""

    def __init__(self) -> None:
        self._before = _read()

    def put_back(self) -> list[str]:
        """Undo what was changed since.

        Returns:
            The names of changed settings, with the values before and after; empty when nothing was.
        """
        now = _read()
        changed = {name: value for name, value in self._before.items() if now[name] != value}
        if not changed:
            return []
        _write(self._before)
        return [f"{name} {value} -> {now[name]}" for name, value in changed.items()]


def _read() -> dict[str, Any]:
    values: dict[str, Any] = {
        "deterministic_algorithms": torch._C._get_deterministic_algorithms(),
        "default_dtype": torch.get_default_dtype(),
        "num_threads": torch.get_num_threads(),
    }
    for name in (*_PLAIN, *_REDUCED):
        if (get := getattr(torch._C, f"_get_{name}", None)) is not None:
            values[name] = _answer(get)
    if (get := getattr(torch._C, "_get_fp32_precision_getter", None)) is not None:
        values |= {f"fp32_precision {b} {o}": get(b, o) for b, o in _PRECISIONS}
    return values


def _answer(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:
        return _UNREADABLE


def _write(values: Mapping[str, Any]) -> None:
    """Older flags first: they set newer ones too."""
    for name in _PLAIN:
        if name in values:
            getattr(torch._C, f"_set_{name}")(values[name])
    for name in _REDUCED:
        if name in values:
            value = values[name]
            getattr(torch._C, f"_set_{name}")(*(value if isinstance(value, tuple) else (value,)))
    if (set_precision := getattr(torch._C, "_set_fp32_precision_setter", None)) is not None:
        for backend, operator in _PRECISIONS:
            set_precision(backend, operator, values[f"fp32_precision {backend} {operator}"])
    torch._C._set_deterministic_algorithms(values["deterministic_algorithms"], warn_only=False)
    torch.set_default_dtype(values["default_dtype"])
    torch.set_num_threads(values["num_threads"])
