"""Index arithmetic: how a loop nest's counters address the elements of a tensor.

A kernel iterates over a *space*: a tuple of extents, row-major. An :class:`Affine` form maps the
counters to an integer; an :class:`Access` maps them to one element of a value, either by one form for
each dimension, or by its row-major position, or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Affine:
    """``const + sum(coefs[k] * counter[k])``."""

    coefs: tuple[int, ...]
    const: int = 0

    def __add__(self, other: Affine) -> Affine:
        return Affine(
            tuple(a + b for a, b in zip(self.coefs, other.coefs, strict=True)), self.const + other.const
        )

    def scaled(self, factor: int, offset: int = 0) -> Affine:
        """``factor * self + offset``."""
        return Affine(tuple(factor * c for c in self.coefs), factor * self.const + offset)

    @property
    def is_constant(self) -> bool:
        """No counter matters."""
        return not any(self.coefs)


def zero(rank: int) -> Affine:
    """The form that is 0 everywhere in a space of ``rank`` counters."""
    return Affine((0,) * rank)


def counter(rank: int, index: int) -> Affine:
    """The form that is counter ``index``."""
    return Affine(tuple(int(k == index) for k in range(rank)))


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def linear(space: Shape) -> Affine:
    """Row-major position in the space; counters that cannot move have no part in it."""
    strides = contiguous_strides(space)
    return Affine(tuple(0 if n == 1 else s for n, s in zip(space, strides, strict=True)))


def divmod_affine(form: Affine, divisor: int, space: Shape) -> tuple[Affine, Affine] | None:
    """Quotient and remainder by ``divisor`` where both are affine over the space, else ``None``."""
    if divisor == 1:
        return form, zero(len(space))
    high = tuple(c // divisor if c % divisor == 0 else 0 for c in form.coefs)
    low = tuple(0 if c % divisor == 0 else c for c in form.coefs)
    if any(c < 0 for c in form.coefs) or form.const < 0:
        return None
    quotient, rest = divmod(form.const, divisor)
    if rest + sum(c * (n - 1) for c, n in zip(low, space, strict=True)) >= divisor:
        return None
    return Affine(high, quotient), Affine(low, rest)


@dataclass(frozen=True)
class Access:
    """Which element of a value of ``shape`` the counters of a space select.

    Attributes:
        shape: of the value.
        forms: one for each dimension; ``None`` where it is not affine (an error only when used).
        position: row-major position, where affine.
    """

    shape: Shape
    forms: tuple[Affine | None, ...]
    position: Affine | None

    @classmethod
    def at_position(cls, shape: Shape, position: Affine, space: Shape) -> Access:
        """The element at a row-major position."""
        forms = [
            zero(len(space)) if extent == 1 else _digit(position, extent, stride, space)
            for extent, stride in zip(shape, contiguous_strides(shape), strict=True)
        ]
        return cls(shape, tuple(forms), position)

    @classmethod
    def of_forms(cls, shape: Shape, forms: Sequence[Affine | None], rank: int) -> Access:
        """The element with one form for each dimension."""
        position: Affine | None = zero(rank)
        for extent, form, stride in zip(shape, forms, contiguous_strides(shape), strict=True):
            if extent == 1:
                continue
            position = None if form is None or position is None else position + form.scaled(stride)
        return cls(shape, tuple(forms), position)

    def broadcast_to(self, shape: Shape, rank: int) -> Access:
        """The operand of ``shape`` that broadcasting to this access's shape reads here."""
        if shape == self.shape:
            return self
        lead = len(self.shape) - len(shape)
        forms = [zero(rank) if extent == 1 else self.forms[lead + k] for k, extent in enumerate(shape)]
        if prod(shape) == prod(self.shape):
            return Access(shape, tuple(forms), self.position)
        return Access.of_forms(shape, forms, rank)

    def offset(self, strides: Shape) -> Affine | None:
        """Element offset in memory of a tensor of this shape with these strides."""
        if self.position is not None and _is_contiguous(self.shape, strides):
            return self.position
        total: Affine | None = None
        for extent, form, stride in zip(self.shape, self.forms, strides, strict=True):
            if extent == 1 or stride == 0:
                continue
            if form is None:
                return None
            total = form.scaled(stride) if total is None else total + form.scaled(stride)
        if total is not None:
            return total
        rank = next((len(f.coefs) for f in (*self.forms, self.position) if f is not None), 0)
        return zero(rank)


def _digit(position: Affine, extent: int, stride: int, space: Shape) -> Affine | None:
    """``(position // stride) % extent``, where affine."""
    first = divmod_affine(position, stride, space)
    if first is None:
        return None
    second = divmod_affine(first[0], extent, space)
    return None if second is None else second[1]


def _is_contiguous(shape: Shape, strides: Shape) -> bool:
    expected = contiguous_strides(shape)
    return all(n == 1 or s == e for n, s, e in zip(shape, strides, expected, strict=True))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether memory order is row-major without gaps."""
    return 0 in shape or _is_contiguous(shape, strides)


def mergeable(forms: Sequence[Affine], outer: int, inner: int, inner_extent: int) -> bool:
    """Whether counters ``outer`` and ``inner`` may become one in every form."""
    return all(f.coefs[outer] == f.coefs[inner] * inner_extent for f in forms)
