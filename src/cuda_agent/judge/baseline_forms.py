"""The forms in which a baseline runs a module, and whether a form's outputs are still right."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cuda_agent.judge.exchange import leaves

TOLERANCE = 1e-2


class Cast(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module under autocast; outputs get the dtypes of ``like``."""

    def __init__(self, model: nn.Module, kind: str, dtype: torch.dtype, *, like: Any) -> None:
        super().__init__()
        self.model, self.kind, self.dtype = model, kind, dtype
        self.dtypes = _dtypes(like)

    def forward(self, *inputs: Any) -> Any:
        """As the module's."""
        with torch.autocast(self.kind, dtype=self.dtype):
            outputs = self.model(*inputs)
        return _with_dtypes(outputs, self.dtypes)


class CastModel(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A copy of a module in another dtype; floating inputs are cast to it, outputs to those of ``like``."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, like: Any) -> None:
        super().__init__()
        self.model, self.dtype = copy.deepcopy(model).to(dtype), dtype
        self.dtypes = _dtypes(like)

    def forward(self, *inputs: Any) -> Any:
        """As the module's."""
        return _with_dtypes(self.model(*(_cast(value, self.dtype) for value in inputs)), self.dtypes)


class Graphs:
    """A module's kernels recorded once for each set of inputs, and replayed (CUDA)."""

    def __init__(self, model: nn.Module, sets: Sequence[Any]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                expected = model(*sets[0])
        torch.cuda.current_stream().wait_stream(stream)
        self._graphs, self._outputs = [], []
        for inputs in sets:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = model(*inputs)
            self._graphs.append(graph)
            self._outputs.append(outputs)
        if not compare(self(0), expected) <= 1.0:
            raise RuntimeError("the graph's replay does not give what eager gives")

    def __call__(self, index: int) -> Any:
        """Replay the graph of a set; what it returns is overwritten by the next replay."""
        self._graphs[index].replay()
        return self._outputs[index]


@contextmanager
def allow_tf32() -> Iterator[None]:
    """TF32 in matrix products and convolutions inside; as before again after."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def compare(found: Any, expected: Any) -> float:
    """Largest |found - expected| over what is allowed (1e-2 + 1e-2 |expected|); at most 1 is right.

    Infinite where shapes or dtypes differ, or a value is finite on one side only.
    """
    ours, theirs = list(leaves(found)), list(leaves(expected))
    if [(t.shape, t.dtype) for t in ours] != [(t.shape, t.dtype) for t in theirs]:
        return float("inf")
    return max((_error(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(found, expected) else float("inf")
    equal = (found == expected) | (found.isnan() & expected.isnan())
    unequal_only_where_finite = equal | (found.isfinite() & expected.isfinite())
    if not bool(unequal_only_where_finite.all()):
        return float("inf")
    error = (found - expected).abs() / (TOLERANCE + TOLERANCE * expected.abs())
    error = torch.where(equal, torch.zeros_like(error), error)
    return float(error.max()) if error.numel() else 0.0


def _dtypes(value: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in leaves(value)]


def _with_dtypes(value: Any, dtypes: Sequence[torch.dtype]) -> Any:
    """A tree with its tensors cast, in plan order."""
    rest = list(dtypes)

    def cast(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(rest.pop(0))
        if isinstance(item, list | tuple):
            return type(item)([cast(part) for part in item])
        if isinstance(item, Mapping):
            return {key: cast(part) for key, part in item.items()}
        return item

    return cast(value)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)([_cast(item, dtype) for item in value])
    if isinstance(value, Mapping):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return value
