"""Inputs and states that a task's own draws do not reach (docs/judging.md, "What is run").

Maps of the task's own draw, so that they need no knowledge of its law. They keep what an input may
stand for: exact zeros (masks, triangles, padding), symmetry, integers and bools, probability rows,
0/1 and one-hot tables. The caller drops a probe where the reference raises or is not finite: a sign
flip before a square root says nothing about a kernel.

Pure functions: arguments are not changed; what a map leaves alone is returned as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

_Rule = Callable[[Tensor, torch.Generator], Tensor | None]


class _Kind(StrEnum):
    """What an input tensor seems to be."""

    PLAIN = "plain"
    """Floating values that any map may change."""
    SYMMETRIC = "symmetric"
    """Square in its last two dimensions and equal to its transpose."""
    TABLE = "table"
    """Integers, bools, whole-numbered or non-finite floats, probability rows: only permuted."""
    FIXED = "fixed"
    """Scalars, empty tensors, sorted index vectors: left alone."""


# Factors beyond 8 refuse honest kernels: exp through exp2 errs by 45 u at x = 60, and tanh through exp by
# 200 u of its own scale at x = 1/64 (measured; the float32 budget is 32 u).
_FACTOR = 8.0


def probe_names() -> tuple[str, ...]:
    """Names that :func:`derive` knows, in the order to try them."""
    return (*_VALUE_RULES, "permute_batch")


def derive(inputs: Sequence[object], name: str, generator: torch.Generator) -> list[object] | None:
    """Map a draw of ``get_inputs`` to another input of the same form.

    ========== =========================================================================
    sign_flip  signs drawn for each index of each dimension; D A D for symmetric tensors
    scale_up   times 8
    scale_down times 1/8
    mixed      second half of the last dimension times 8
    shift      exact zeros stay, all else moves by 0.5 to 1.5 standard deviations
    one_row    one index of dimension 0 halved: almost all of the input stays
    permute_batch  one permutation of dimension 0 for all inputs of the same batch size
    ========== =========================================================================

    Args:
        inputs: tensors, numbers, and lists, tuples, dicts of them.
        name: one of :func:`probe_names`, or ``one_row``.
        generator: source of the random choices.

    Returns:
        The new inputs, or ``None`` where the map changes nothing here.

    Raises:
        KeyError: no such probe.
    """
    if name == "permute_batch":
        return _permute_batch(inputs, generator)
    rule = _one_row if name == "one_row" else _VALUE_RULES[name]
    changed = False

    def apply(tensor: Tensor) -> Tensor:
        nonlocal changed
        if _kind(tensor) not in (_Kind.PLAIN, _Kind.SYMMETRIC):
            return tensor
        result = rule(tensor, generator)
        if result is None:
            return tensor
        changed = True
        return _laid_out_as(tensor, result)

    derived = [_map(item, apply) for item in inputs]
    return derived if changed else None


def perturb_state(state: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Parameters and buffers moved away from their defaults.

    Variances (names with ``var``) times uniform(0.5, 2); tensors of one sign (gains, frequencies)
    times uniform(0.5, 1.5); all-zero tensors (biases, running means) 0.2 x normal; the rest plus 0.25
    x their spread x normal. Exact zeros inside a tensor, infinities and NaN stay; integer, bool and
    0/1 tensors (counters, index tables, masks) are untouched. Tied tensors stay tied.

    Args:
        state: a ``state_dict``; not changed.
        generator: source of the noise.
    """
    perturbed: dict[str, Tensor] = {}
    done: list[tuple[Tensor, Tensor]] = []
    for name, tensor in state.items():
        known = next((new for old, new in done if _tied(old, tensor)), None)
        perturbed[name] = _perturbed(name, tensor, generator) if known is None else known
        done.append((tensor, perturbed[name]))
    return perturbed


# --- what a tensor is


def _kind(tensor: Tensor) -> _Kind:
    if tensor.numel() < 2 or _is_sorted_index(tensor):
        return _Kind.FIXED
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return _Kind.TABLE
    if not _all(torch.isfinite(tensor)) or _is_whole(tensor) or _is_probability(tensor):
        return _Kind.TABLE
    return _Kind.SYMMETRIC if _is_symmetric(tensor) else _Kind.PLAIN


def _all(mask: Tensor) -> bool:
    return bool(mask.all().item())


def _is_sorted_index(tensor: Tensor) -> bool:
    """Offsets and positions: a whole-numbered vector in order, not all equal."""
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    steps = tensor[1:] - tensor[:-1]
    return _all(steps >= 0) and not _all(steps == 0)


def _first_row(tensor: Tensor) -> Tensor:
    """Enough to say no for most tensors, without a pass over gigabytes."""
    return tensor[(0,) * (tensor.dim() - 1)]


def _is_whole(tensor: Tensor) -> bool:
    return not tensor.is_complex() and all(_all(t == t.round()) for t in (_first_row(tensor), tensor))


def _is_probability(tensor: Tensor) -> bool:
    if tensor.is_complex() or tensor.shape[-1] < 2:
        return False
    return all(_all(t >= 0) and _sums_to_one(t) for t in (_first_row(tensor), tensor))


def _sums_to_one(tensor: Tensor) -> bool:
    slack = max(1e-4, 4 * torch.finfo(tensor.dtype).eps * tensor.shape[-1] ** 0.5)
    return _all((tensor.sum(-1, dtype=torch.float64) - 1).abs() <= slack)


def _is_symmetric(tensor: Tensor) -> bool:
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    return bool(torch.equal(tensor, tensor.mT))


def _is_triangular(tensor: Tensor) -> bool:
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1]:
        return False
    return any(_all(part == 0) for part in (torch.triu(tensor, 1), torch.tril(tensor, -1)))


# --- maps of values


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, device=generator.device).item())


def _by_index(tensor: Tensor, vector: Callable[[int], Tensor]) -> Tensor:
    """Multiply by a vector along each dimension; the last two share one where symmetric."""
    result, shared = tensor, None
    for dim in range(tensor.dim()):
        factor = vector(tensor.shape[dim])
        if dim == tensor.dim() - 2 and _kind(tensor) is _Kind.SYMMETRIC:
            shared = factor
        if dim == tensor.dim() - 1 and shared is not None:
            factor = shared
        shape = [1] * tensor.dim()
        shape[dim] = tensor.shape[dim]
        result = result * factor.to(tensor.device, tensor.dtype).view(shape)
    return result


def _sign_flip(tensor: Tensor, generator: torch.Generator) -> Tensor | None:
    def signs(length: int) -> Tensor:
        bits = torch.randint(2, (length,), generator=generator, device=generator.device)
        if length > 1:  # both signs, so that the map is never the identity
            first, second = torch.randperm(length, generator=generator, device=generator.device)[:2].tolist()
            bits[first], bits[second] = 0, 1
        return bits * 2 - 1

    return _by_index(tensor, signs)


def _scaled(factor: float) -> _Rule:
    def rule(tensor: Tensor, generator: torch.Generator) -> Tensor | None:
        del generator
        return tensor * factor

    return rule


def _mixed(tensor: Tensor, generator: torch.Generator) -> Tensor | None:
    """A nominal first half and a large second half: kernels that look at a prefix only are caught."""
    del generator
    length = tensor.shape[-1]
    if length < 2:
        return None
    factor = torch.ones(length, dtype=tensor.dtype, device=tensor.device)
    factor[length // 2 :] = _FACTOR
    result = tensor * factor
    return result * factor[:, None] if _kind(tensor) is _Kind.SYMMETRIC else result


def _one_row(tensor: Tensor, generator: torch.Generator) -> Tensor | None:
    """Half the values of one index of dimension 0: seen only by who reads all of the input."""
    length = tensor.shape[0]
    if length < 2 or _kind(tensor) is _Kind.SYMMETRIC:
        return None
    row = int(torch.randint(length, (), generator=generator, device=generator.device).item())
    result = tensor.clone()
    result[row] *= 0.5
    return result


def _shift(tensor: Tensor, generator: torch.Generator) -> Tensor | None:
    occupied = tensor != 0
    values = tensor[occupied] if not _all(occupied) else tensor
    wide = torch.complex64 if tensor.is_complex() else torch.float32
    spread = float(values.to(wide).std().item()) if values.numel() > 1 else 0.0
    amount = _uniform(generator, 0.5, 1.5) * (spread or 1.0)
    return torch.where(occupied, tensor + amount, tensor)


_VALUE_RULES: dict[str, _Rule] = {
    "sign_flip": _sign_flip,
    "scale_up": _scaled(_FACTOR),
    "scale_down": _scaled(1 / _FACTOR),
    "mixed": _mixed,
    "shift": _shift,
}


# --- permutation of the batch


def _permute_batch(inputs: Sequence[object], generator: torch.Generator) -> list[object] | None:
    tensors: list[Tensor] = []
    for item in inputs:
        _map(item, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    size = next((t.shape[0] for t in tensors if t.dim() and t.numel() > 1), 1)
    if size < 2:
        return None
    order = torch.randperm(size, generator=generator, device=generator.device)
    if _all(order == torch.arange(size, device=order.device)):
        order = order.roll(1)
    changed = False

    def apply(tensor: Tensor) -> Tensor:
        nonlocal changed
        if tensor.dim() == 0 or tensor.shape[0] != size or _kind(tensor) is _Kind.FIXED:
            return tensor
        if _is_triangular(tensor):
            return tensor
        index = order.to(tensor.device)
        result = tensor.index_select(0, index)
        if tensor.dim() == 2 and _kind(tensor) is _Kind.SYMMETRIC:
            result = result.index_select(1, index)
        changed = changed or not torch.equal(result, tensor)
        return _laid_out_as(tensor, result)

    permuted = [_map(item, apply) for item in inputs]
    return permuted if changed else None


def _map(item: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply to each tensor of nested lists, tuples and dicts."""
    if isinstance(item, Tensor):
        return function(item)
    if isinstance(item, list | tuple):
        mapped = [_map(part, function) for part in item]
        if hasattr(item, "_fields"):
            return type(item)(*mapped)
        return type(item)(mapped)
    if isinstance(item, dict):
        return {key: _map(value, function) for key, value in item.items()}
    return item


def _laid_out_as(original: Tensor, result: Tensor) -> Tensor:
    """``result`` with the strides of ``original``, where those are dense (channels_last stays)."""
    result = result.to(original.dtype)
    wanted = torch.empty_like(original)
    return result if result.stride() == wanted.stride() else wanted.copy_(result)


# --- states


def _tied(a: Tensor, b: Tensor) -> bool:
    """One storage, or equal values that no default explains (a tie lost on the way here)."""
    if a.shape != b.shape or a.dtype != b.dtype or a.numel() == 0:
        return False
    if a.data_ptr() == b.data_ptr() and a.device == b.device:
        return True
    first = a.reshape(-1)[0]
    return a.device == b.device and bool(torch.equal(a, b)) and not _all(a == first)


def _perturbed(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return tensor if not tensor.is_complex() else _perturbed_complex(name, tensor, generator)
    finite = torch.isfinite(tensor)
    values = tensor.where(finite, 0.0).double()
    movable = finite & (values != 0)
    if _all(values == 0):
        noise = 0.2 * _normal(tensor, generator)
        return tensor if not _all(finite) else noise.to(tensor.dtype)
    if _is_mask(tensor, movable):
        return tensor
    if "var" in name.rpartition(".")[2]:
        moved = values * _uniform_like(tensor, generator, 0.5, 2.0)
    elif _all((values > 0) | ~movable) or _all((values < 0) | ~movable):
        moved = values * _uniform_like(tensor, generator, 0.5, 1.5)
    else:
        spread = float(values[movable].std(correction=0).item())
        moved = values + 0.25 * spread * _normal(tensor, generator)
    return _laid_out_as(tensor, torch.where(movable, moved.to(tensor.dtype), tensor))


def _perturbed_complex(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    parts = torch.view_as_real(tensor.resolve_conj())
    return torch.view_as_complex(_perturbed(name, parts, generator).contiguous())


def _is_mask(tensor: Tensor, movable: Tensor) -> bool:
    """A 0/1 table; all ones is a gain instead."""
    return not _all(movable) and _all((tensor == 0) | (tensor == 1) | ~torch.isfinite(tensor))


def _normal(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return noise.to(tensor.device)


def _uniform_like(tensor: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    noise = torch.rand(tensor.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return (low + (high - low) * noise).to(tensor.device)
