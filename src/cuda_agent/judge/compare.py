"""Comparison of one output tensor with its reference (docs/judging.md, "Tracks").

Pure functions over tensors, run in the judge's own process. They work on the tensors' device, in
float64, piece by piece: an output of 2e9 elements needs a few hundred MB beside itself.

What this cannot see: an output whose value hardly depends on the precision of the work behind it
(an average over many elements hides TF32). The kernel list shows that; the budget does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent.config import Track

PAPER_TOLERANCE = 1e-2
"""atol and rtol of track ``paper`` (the paper's verification script)."""

_HALF_FACTORS = (3.0, 4.0)
_FACTORS = {torch.float32: (64.0, 32.0), torch.float64: (64.0, 8192.0)}
_FEW_ELEMENTS, _FEW_FACTOR = 64, 4.0
_NUM_SHOWN = 3


@dataclass(frozen=True)
class Budget:
    """Largest allowed maximum and root mean square of the scaled error."""

    max: float
    rms: float

    def holds(self, error: tuple[float, float]) -> bool:
        """Whether ``(max, rms)`` is inside; NaN never is."""
        return error[0] <= self.max and error[1] <= self.rms


_FALLBACK = {
    torch.float64: Budget(max=1e-10, rms=1e-11),
    torch.float32: Budget(max=1e-4, rms=2e-5),
}
"""Budgets against eager itself, where no float64 run of the reference exists. float32: well above
serial sums of 8192 terms (6e-6), well below TF32 products of normal matrices (8e-4, rms 2e-4)."""


@dataclass(frozen=True)
class LeafReport:
    """Verdict on one output tensor.

    Attributes:
        ok: inside the track's tolerance.
        max_abs, max_rel: largest error against eager over finite elements (relative: where eager is
            not 0); ``None`` when shapes or dtypes differ, or the tensor is not floating.
        scaled: (max, rms) of the scaled error; track ``matched`` only.
        budget: what ``scaled`` was held against.
        detail: one line: why it failed, or a remark on how it was compared; may be empty when ok.
    """

    ok: bool
    max_abs: float | None
    max_rel: float | None
    scaled: tuple[float, float] | None
    budget: Budget | None
    detail: str


def scaled_error(y: Tensor, y64: Tensor) -> tuple[float, float]:
    """Maximum and rms of e(y) = |y - y64| / (|y64| + rms(y64)).

    Elements equal on both sides, NaN and infinities included, have error 0; a non-finite element on
    one side only has error ``inf``. rms(y64) is over its finite elements. Where the reference is all
    zero, any other value has error ``inf``. No elements: (0, 0).

    Args:
        y: real tensor of any shape.
        y64: reference, same shape and device.

    Raises:
        ValueError: shapes differ.
    """
    if y.shape != y64.shape:
        raise ValueError(f"shapes differ: {tuple(y.shape)} and {tuple(y64.shape)}")
    return _scaled_errors((y,), y64)[0]


def error_budget(
    eager_error: tuple[float, float], dtype: torch.dtype, *, num_elements: int | None = None
) -> Budget:
    """Budget from eager's own scaled error (docs/judging.md, "Tracks").

    float32: max(64 x eager's, 32 u). float16, bfloat16 and narrower: max(3 x eager's, 4 u). float64:
    max(64 x eager's, 8192 u), since eager is its own reference there and a serial sum of 8192 terms
    is honest. u is the unit round-off, half of ``finfo.eps``. Below 64 elements the second bound is four
    times that (float32, float64): eager's own error is then a matter of luck, and a serial sum of 8192
    terms exceeds 32 u once in a hundred draws.

    Args:
        eager_error: (max, rms) as of :func:`scaled_error`.
        dtype: output dtype, floating.
        num_elements: of the output; ``None`` for many.
    """
    factor, floor = _FACTORS.get(dtype, _HALF_FACTORS)
    if num_elements is not None and num_elements < _FEW_ELEMENTS and dtype in _FACTORS:
        floor *= _FEW_FACTOR
    unit = torch.finfo(dtype).eps / 2
    return Budget(
        max=max(factor * eager_error[0], floor * unit), rms=max(factor * eager_error[1], floor * unit)
    )


def fallback_budget(dtype: torch.dtype) -> Budget:
    """Budget against eager where no float64 reference exists; half types 32 u and 8 u."""
    unit = torch.finfo(dtype).eps / 2
    return _FALLBACK.get(dtype, Budget(max=32 * unit, rms=8 * unit))


def compare_leaf(
    actual: Tensor,
    expected: Tensor,
    expected64: Tensor | None,
    *,
    track: Track,
    name: str,
    widen: float = 1.0,
) -> LeafReport:
    """Compare one output with the reference.

    Shape, dtype and layout strictly. Non-finite elements must be where eager's are, of the same kind
    and sign. Then: integers and bools exactly; floats under ``paper`` by ``allclose`` with atol = rtol
    = 1e-2 against eager; under ``matched`` by the error budget against ``expected64``, or against
    eager with :func:`fallback_budget` where ``expected64`` is ``None`` or not finite where eager is.
    Complex tensors are compared as pairs of reals.

    Args:
        actual: the candidate's output, on the judge's device.
        expected: eager's output, same device.
        expected64: the reference's float64 output (complex128 for complex), or ``None``.
        track: contract.
        name: what to call the output in ``detail``.
        widen: factor on the budget, for probes that condition the problem worse.
    """
    if mismatch := _form_mismatch(actual, expected):
        return LeafReport(False, None, None, None, None, f"{name}: {mismatch}")
    if expected.is_complex():
        actual, expected = _as_real(actual), _as_real(expected)
        expected64 = None if expected64 is None else _as_real(expected64.to(torch.complex128))
    if not expected.is_floating_point():
        return _compare_exact(actual, expected, name)
    if wrong := _finite_mismatch(actual, expected):
        return LeafReport(False, None, None, None, None, f"{name}: {wrong}")
    max_abs, max_rel = _plain_errors(actual, expected)
    if track is Track.PAPER:
        return _compare_paper(actual, expected, name, max_abs, max_rel)
    scaled, budget, reference, note = _matched_error(actual, expected, expected64, widen)
    if budget.holds(scaled):
        return LeafReport(True, max_abs, max_rel, scaled, budget, f"{name}: {note}" if note else "")
    detail = _budget_detail(actual, expected, reference, scaled=scaled, budget=budget)
    return LeafReport(False, max_abs, max_rel, scaled, budget, f"{name}: {detail}{note and '; '}{note}")


# --- pieces: aligned slices of same-shaped tensors, row-major, whatever their strides


def _piece_size(device: torch.device) -> int:
    # float64 temporaries that stay in cache and in the allocator: 7 times faster than pieces of 2^22
    return 1 << (18 if device.type == "cpu" else 24)


def _pieces(
    tensors: Sequence[Tensor], offset: tuple[int, ...] | None = None
) -> Iterator[tuple[tuple[int, ...], tuple[Tensor, ...]]]:
    """Yield (offset of the piece, slices), each of at most the device's piece size."""
    first = tensors[0]
    offset = offset or (0,) * first.dim()
    limit = _piece_size(first.device)
    if first.numel() <= limit:
        if first.numel():
            yield offset, tuple(tensors)
        return
    dim = next(d for d, size in enumerate(first.shape) if size > 1)
    step = math.ceil(first.shape[dim] / min(first.shape[dim], math.ceil(first.numel() / limit)))
    for start in range(0, first.shape[dim], step):
        length = min(step, first.shape[dim] - start)
        part = [t.narrow(dim, start, length) for t in tensors]
        yield from _pieces(part, (*offset[:dim], offset[dim] + start, *offset[dim + 1 :]))


def _wide(piece: Tensor) -> Tensor:
    return piece.to(torch.float64)


def _finite(piece: Tensor) -> Tensor:
    # torch has no isfinite for the 8-bit float types
    return torch.isfinite(piece.float() if piece.dtype.itemsize == 1 else piece)


def _as_real(tensor: Tensor) -> Tensor:
    real: Tensor = torch.view_as_real(tensor.resolve_conj())
    return real


# --- errors


def _root_mean_square(y64: Tensor, eager: Tensor | None) -> float:
    """rms over finite elements (finite in ``eager`` too, where given), safe against overflow."""
    tensors = (y64,) if eager is None else (y64, eager)
    peak = torch.zeros((), dtype=torch.float64, device=y64.device)
    for _, parts in _pieces(tensors):
        peak = torch.maximum(peak, _finite_part(parts).abs().max())
    scale = peak.item()
    if scale == 0.0:
        return 0.0
    total = torch.zeros_like(peak)
    count = torch.zeros((), dtype=torch.int64, device=y64.device)
    for _, parts in _pieces(tensors):
        total += (_finite_part(parts) / scale).square().sum()
        count += _finite_mask(parts).sum()
    return float(scale * math.sqrt(total.item() / count.item()))


def _finite_mask(parts: Sequence[Tensor]) -> Tensor:
    mask = _finite(parts[0])
    for part in parts[1:]:
        mask &= _finite(part)
    return mask


def _finite_part(parts: Sequence[Tensor]) -> Tensor:
    return _wide(parts[0]).where(_finite_mask(parts), 0.0)


def _element_error(y: Tensor, y64: Tensor, rms: float) -> Tensor:
    y, y64 = _wide(y), _wide(y64)
    error = (y - y64).abs() / (y64.abs() + rms)
    same = (y == y64) | (y.isnan() & y64.isnan())
    return error.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)


def _scaled_errors(
    ys: Sequence[Tensor], y64: Tensor, eager: Tensor | None = None
) -> list[tuple[float, float]]:
    """(max, rms) for each of ``ys``; elements where ``eager`` is not finite are left out."""
    rms = _root_mean_square(y64, eager)
    tensors = (y64, *ys) if eager is None else (y64, *ys, eager)
    peaks = torch.zeros(len(ys), dtype=torch.float64, device=y64.device)
    totals, count = torch.zeros_like(peaks), torch.zeros((), dtype=torch.int64, device=y64.device)
    for _, (reference, *parts) in _pieces(tensors):
        keep = None if eager is None else _finite(parts.pop())
        count += reference.numel() if keep is None else keep.sum()
        for index, part in enumerate(parts):
            error = _element_error(part, reference, rms)
            if keep is not None:
                error = error.where(keep, 0.0)
            peaks[index] = torch.maximum(peaks[index], error.max())
            totals[index] += error.square().sum()
    num = max(int(count.item()), 1)
    return [
        (peak, math.sqrt(total / num)) for peak, total in zip(peaks.tolist(), totals.tolist(), strict=True)
    ]


def _plain_errors(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """Largest absolute and relative error over finite elements."""
    peak_abs = torch.zeros((), dtype=torch.float64, device=expected.device)
    peak_rel = torch.zeros_like(peak_abs)
    for _, (got, want) in _pieces((actual, expected)):
        reference = _wide(want)
        error = (_wide(got) - reference).abs().where(_finite(reference), 0.0)
        relative = (error / reference.abs()).where(_finite(reference) & (reference != 0), 0.0)
        peak_abs = torch.maximum(peak_abs, error.max())
        peak_rel = torch.maximum(peak_rel, relative.max())
    return float(peak_abs.item()), float(peak_rel.item())


def _matched_error(
    actual: Tensor, expected: Tensor, expected64: Tensor | None, widen: float
) -> tuple[tuple[float, float], Budget, Tensor, str]:
    """(scaled error, budget, reference used, remark)."""
    note = "compared with eager: no float64 run of the reference"
    if expected64 is not None:
        own, eager = _scaled_errors((actual, expected), expected64, expected)
        if all(math.isfinite(value) for value in eager):
            budget = error_budget(eager, expected.dtype, num_elements=expected.numel())
            return own, _widened(budget, widen), expected64, ""
        note = "compared with eager: its float64 run is not finite where eager is"
    own = _scaled_errors((actual,), expected, expected)[0]
    return own, _widened(fallback_budget(expected.dtype), widen), expected, note


def _widened(budget: Budget, factor: float) -> Budget:
    return Budget(max=budget.max * factor, rms=budget.rms * factor)


# --- verdicts


def _form_mismatch(actual: Tensor, expected: Tensor) -> str:
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"dtype {_short(actual.dtype)}, expected {_short(expected.dtype)}"
    if actual.layout != expected.layout or expected.layout != torch.strided:
        return (
            f"layout {_short(actual.layout)}, expected {_short(expected.layout)} (only strided is compared)"
        )
    return ""


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


def _finite_mismatch(actual: Tensor, expected: Tensor) -> str:
    """Say where non-finite elements differ; empty when they are the same."""
    counts = torch.zeros(4, dtype=torch.int64, device=expected.device)
    shown: list[str] = []
    for offset, (got, want) in _pieces((actual, expected)):
        wrong = (_finite(got) & _finite(want)).logical_not_()
        wrong &= (got != want) & ~(got.isnan() & want.isnan())
        finite = _finite(want)
        counts[0] += wrong.sum()
        counts[1] += (got.isnan() & finite).sum()
        counts[2] += (~got.isnan() & ~_finite(got) & finite).sum()
        counts[3] += (wrong & ~finite).sum()
        shown += _show(wrong, offset, got, want, limit=_NUM_SHOWN - len(shown))
    total, nan, inf, missed = counts.tolist()
    if not total:
        return ""
    parts = [f"{nan} NaN and {inf} Inf where the reference is finite"] if nan or inf else []
    parts += [f"{missed} elements differ where the reference is NaN or Inf"] if missed else []
    return f"{' and '.join(parts)} (of {expected.numel()} elements); {'; '.join(shown)}"


def _compare_exact(actual: Tensor, expected: Tensor, name: str) -> LeafReport:
    found = ((o, got != want, got, want) for o, (got, want) in _pieces((actual, expected)))
    detail = _wrong_elements(found, expected.numel())
    return LeafReport(not detail, None, None, None, None, f"{name}: {detail}" if detail else "")


def _compare_paper(actual: Tensor, expected: Tensor, name: str, max_abs: float, max_rel: float) -> LeafReport:
    def wrong(got: Tensor, want: Tensor) -> Tensor:
        reference = _wide(want)
        allowed = PAPER_TOLERANCE + PAPER_TOLERANCE * reference.abs()
        return ((_wide(got) - reference).abs() > allowed) & _finite(reference)

    found = ((o, wrong(got, want), got, want) for o, (got, want) in _pieces((actual, expected)))
    detail = _wrong_elements(found, expected.numel())
    if detail:
        detail = f"{name}: {detail} (atol = rtol = {PAPER_TOLERANCE:g}, largest error {max_abs:.3g})"
    return LeafReport(not detail, max_abs, max_rel, None, None, detail)


def _budget_detail(
    actual: Tensor, expected: Tensor, reference: Tensor, *, scaled: tuple[float, float], budget: Budget
) -> str:
    """First wrong elements, or the worst ones when only the rms is over the budget."""
    over_max = scaled[0] > budget.max
    bound = budget.max if over_max else budget.rms
    rms = _root_mean_square(reference, expected)
    found = (
        (o, (_element_error(got, ref, rms) > bound) & _finite(want), got, ref)
        for o, (got, ref, want) in _pieces((actual, reference, expected))
    )
    what = "maximum" if over_max else "rms"
    value, limit = (scaled[0], budget.max) if over_max else (scaled[1], budget.rms)
    wrong = _wrong_elements(found, expected.numel())
    return f"{wrong} ({what} of scaled error {value:.3g}, allowed {limit:.3g})"


def _wrong_elements(
    found: Iterator[tuple[tuple[int, ...], Tensor, Tensor, Tensor]], num_elements: int
) -> str:
    """Count wrong elements and show the first three; empty when there are none."""
    total, shown = 0, list[str]()
    for offset, wrong, got, want in found:
        total += int(wrong.sum().item())
        shown += _show(wrong, offset, got, want, limit=_NUM_SHOWN - len(shown))
    return f"{total} of {num_elements} elements wrong; {'; '.join(shown)}" if total else ""


def _show(wrong: Tensor, offset: tuple[int, ...], got: Tensor, want: Tensor, *, limit: int) -> list[str]:
    if limit <= 0 or not bool(wrong.any()):
        return []
    lines = []
    for index in wrong.nonzero()[:limit].tolist():
        where = [start + i for start, i in zip(offset, index, strict=True)]
        place = tuple(index)
        lines.append(f"{where} got {_value(got[place])}, expected {_value(want[place])}")
    return lines


def _value(element: Tensor) -> str:
    value = element.item()
    return f"{value:.7g}" if isinstance(value, float) else str(value)
