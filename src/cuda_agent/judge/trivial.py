"""Answers that need no work, and by how much they miss (docs/degenerate.md).

A task on which one of them passes measures nothing: whoever returns it is "correct". Pure functions over
tensors; they run in the judge's process and hold no task code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cuda_agent.config import Track
from cuda_agent.judge.admission import Protocol
from cuda_agent.judge.compare import (
    PAPER_TOLERANCE,
    Budget,
    compare_leaf,
    error_budget,
    fallback_budget,
    scaled_error,
)

# Elements compared at a time: float64 temporaries that stay in cache, or that keep a GPU busy.
_CPU_PIECE, _GPU_PIECE = 1 << 18, 1 << 24


TOLERANCES = {Protocol.KERNELBENCH: PAPER_TOLERANCE, Protocol.KERNELBENCH_STRICT: 1e-4}
"""atol = rtol of the protocols that use ``allclose``."""


def mean_like(earlier: Tensor, expected: Tensor) -> Tensor:
    """A constant of ``expected``'s form: the mean of ``earlier`` over its finite elements.

    Rounded for integers, the majority for bools. One element of memory, whatever the shape.
    """
    if expected.is_complex():
        parts = torch.view_as_real(earlier.resolve_conj())
        value: complex | float = complex(_mean(parts[..., 0]), _mean(parts[..., 1]))
    else:
        value = _mean(earlier)
    if not (expected.is_floating_point() or expected.is_complex()):
        value = round(_mean(earlier))
    scalar = torch.tensor(value, device=expected.device).to(expected.dtype)
    return scalar.expand(expected.shape)


def _mean(tensor: Tensor) -> float:
    total, count = 0.0, 0
    for (piece,) in _pieces(tensor):
        wide = piece.to(torch.float64)
        finite = torch.isfinite(wide)
        total += float(wide.where(finite, 0.0).sum().item())
        count += int(finite.sum().item())
    return total / count if count else 0.0


def zeros_like(expected: Tensor) -> Tensor:
    """Zeros of ``expected``'s form, in one element of memory."""
    return torch.zeros((), dtype=expected.dtype, device=expected.device).expand(expected.shape)


def views_like(inputs: Sequence[Tensor], expected: Tensor) -> dict[str, Tensor]:
    """Ways to return an input as the output, by name; empty where none has the shape.

    The input itself, its elements in another shape, its last two dimensions swapped, or broadcast over
    trailing or leading dimensions; cast where the dtype differs.
    """
    return {
        f"input {index} {how}".rstrip(): view if view.dtype == expected.dtype else view.to(expected.dtype)
        for index, tensor in enumerate(inputs)
        if tensor.is_complex() == expected.is_complex()
        for how, view in _views(tensor, expected.shape)
    }


def _views(tensor: Tensor, shape: torch.Size) -> Iterator[tuple[str, Tensor]]:
    if tensor.numel() == 0:
        return
    if tensor.shape == shape:
        yield "", tensor
    elif tensor.numel() == shape.numel():
        yield "reshaped", tensor.reshape(shape)
    if tensor.dim() >= 2 and tensor.mT.shape == shape:
        yield "transposed", tensor.mT
    if tensor.numel() == shape.numel():
        return
    if _broadcasts(tensor.shape, shape):
        yield "broadcast", tensor.broadcast_to(shape)
    missing = len(shape) - tensor.dim()
    padded = (*tensor.shape, *(1,) * missing)
    if missing > 0 and tensor.numel() > 1 and _broadcasts(padded, shape):
        yield "broadcast from the left", tensor.reshape(padded).broadcast_to(shape)


def _broadcasts(small: Sequence[int], large: Sequence[int]) -> bool:
    if len(small) > len(large):
        return False
    return all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def unit_error(actual: Tensor, expected: Tensor) -> float:
    """Largest |actual - expected| / (1 + |expected|).

    ``allclose`` with atol = rtol = t passes where this is at most t. Integers and bools are held to the same
    rule, as the public scripts do. ``inf`` where shapes or dtypes differ or a non-finite element is on one
    side only.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    if expected.is_complex():
        pairs = zip(_parts(actual), _parts(expected), strict=True)
        return max(unit_error(got, want) for got, want in pairs)
    worst = 0.0
    for got, want in _pieces(actual, expected):
        got64, want64 = got.to(torch.float64), want.to(torch.float64)
        error = (got64 - want64).abs() / (1 + want64.abs())
        same = (got64 == want64) | (got64.isnan() & want64.isnan())
        error = error.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
        worst = max(worst, float(error.max().item()))
    return worst


def _parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    real = torch.view_as_real(tensor.resolve_conj())
    return real[..., 0], real[..., 1]


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Slices along the first dimension, so that an expanded constant stays one element of memory."""
    first = tensors[0]
    if first.numel() == 0:
        return
    limit = _CPU_PIECE if first.device.type == "cpu" else _GPU_PIECE
    if first.dim() == 0 or first.numel() <= limit:
        yield tensors
        return
    per_row = first.numel() // first.shape[0]
    rows = max(1, limit // per_row)
    for start in range(0, first.shape[0], rows):
        part = tuple(t[start : start + rows] for t in tensors)
        if per_row > limit and part[0].dim() > 1:
            yield from _pieces(*(t[0] for t in part))
        else:
            yield part


class Contract:
    """What one output tensor is held against under a track, by the judge's own comparison.

    Args:
        expected: eager's output.
        expected64: the float64 run's, or ``None``.
        track: the contract.
        finite: all of ``expected`` is finite.
    """

    def __init__(self, expected: Tensor, expected64: Tensor | None, track: Track, *, finite: bool) -> None:
        self._expected, self._expected64, self._track = expected, expected64, track
        self._quick: tuple[Tensor, Budget] | None = None
        if track is Track.MATCHED and finite and expected.is_floating_point():
            self._quick = _reference_and_budget(expected, expected64)

    def ratio(self, actual: Tensor) -> float:
        """Error over what is allowed; at most 1 passes."""
        expected = self._expected
        if self._quick is not None and (actual.shape, actual.dtype) == (expected.shape, expected.dtype):
            reference, budget = self._quick
            return _over(scaled_error(actual, reference), budget)
        if self._track is Track.PAPER and (expected.is_floating_point() or expected.is_complex()):
            return unit_error(actual, expected) / PAPER_TOLERANCE
        report = compare_leaf(actual, expected, self._expected64, track=self._track, name="output")
        if report.scaled is None or report.budget is None or math.isinf(report.scaled[0]):
            return 0.0 if report.ok else math.inf
        return _over(report.scaled, report.budget)


def _reference_and_budget(expected: Tensor, expected64: Tensor | None) -> tuple[Tensor, Budget]:
    """As :func:`cuda_agent.judge.compare.compare_leaf` chooses them, once for all answers."""
    if expected64 is not None:
        own = scaled_error(expected, expected64)
        if all(math.isfinite(value) for value in own):
            return expected64, error_budget(own, expected.dtype, num_elements=expected.numel())
    return expected, fallback_budget(expected.dtype)


def _over(error: tuple[float, float], budget: Budget) -> float:
    ratio = max(
        value / limit if limit else (math.inf if value else 0.0)
        for value, limit in zip(error, (budget.max, budget.rms), strict=True)
    )
    return math.inf if math.isnan(ratio) else ratio
