"""Laws of input values, each with the source that draws from it."""

from __future__ import annotations

from enum import StrEnum


class Law(StrEnum):
    """How the values of an input are drawn; sign-symmetric unless an operator needs otherwise."""

    NORMAL = "normal"
    """Standard normal."""
    POSITIVE = "positive"
    """Uniform in [0.1, 2.1): logarithms, roots, rates."""
    UNIT = "unit"
    """Uniform in [0, 1)."""
    SYMMETRIC_UNIT = "symmetric_unit"
    """Uniform in [-1, 1)."""
    ABOVE_ONE = "above_one"
    """Uniform in [1.1, 3.1)."""
    PROBABILITIES = "probabilities"
    """Non-negative, sum 1 along the last dimension."""
    LOG_PROBABILITIES = "log_probabilities"
    """Logarithms of such."""
    SIGNS = "signs"
    """-1 or 1, as floats."""
    BITS = "bits"
    """0 or 1, as floats."""
    COUNTS = "counts"
    """Small whole numbers, as floats."""
    SORTED = "sorted"
    """Standard normal, sorted along the last dimension."""
    POSITIVE_DEFINITE = "positive_definite"
    """Symmetric positive definite matrices in the last two dimensions."""
    INVERTIBLE = "invertible"
    """Well-conditioned matrices in the last two dimensions."""
    TRIANGULAR = "triangular"
    """Well-conditioned lower triangular matrices in the last two dimensions."""
    COMPLEX = "complex"
    """Complex standard normal."""
    INTEGERS = "integers"
    """Whole numbers, ``low <= x < high``: values, indices, classes, lengths."""
    DISTINCT = "distinct"
    """A permutation of 0 ... n - 1 along the last dimension."""
    BOOL = "bool"
    """True half of the time."""


_FLOAT = {
    Law.NORMAL: "torch.randn({shape}{dtype})",
    Law.POSITIVE: "torch.rand({shape}{dtype}) * 2 + 0.1",
    Law.UNIT: "torch.rand({shape}{dtype})",
    Law.SYMMETRIC_UNIT: "torch.rand({shape}{dtype}) * 2 - 1",
    Law.ABOVE_ONE: "torch.rand({shape}{dtype}) * 2 + 1.1",
    Law.PROBABILITIES: "torch.softmax(torch.randn({shape}{dtype}), dim=-1)",
    Law.LOG_PROBABILITIES: "torch.log_softmax(torch.randn({shape}{dtype}), dim=-1)",
    Law.SIGNS: "torch.randint(0, 2, {shape}){cast} * 2 - 1",
    Law.BITS: "torch.randint(0, 2, {shape}){cast}",
    Law.COUNTS: "torch.randint(0, 8, {shape}){cast}",
    Law.SORTED: "torch.sort(torch.randn({shape}{dtype})).values",
    Law.INVERTIBLE: "torch.randn({shape}{dtype}) + 3 * {last} ** 0.5 * torch.eye({last}{dtype})",
    Law.TRIANGULAR: "torch.tril(torch.randn({shape}{dtype})) + 3 * {last} ** 0.5 * torch.eye({last}{dtype})",
    Law.POSITIVE_DEFINITE: (
        "(factor := torch.randn({shape}{dtype})) @ factor.mT / {last} + torch.eye({last}{dtype})"
    ),
    Law.COMPLEX: "torch.randn({shape}, dtype=torch.{name})",
}


def drawing(law: Law, shape: str, *, dtype: str = "float32", low: str = "0", high: str = "16") -> str:
    """A Python expression that draws a tensor.

    Args:
        law: of its values.
        shape: its sizes as they would stand in a call: ``batch_size, 64``; empty for a scalar.
        dtype: PyTorch's name.
        low, high: bounds of :attr:`Law.INTEGERS`.
    """
    if law is Law.BOOL:
        return f"torch.rand({_sized(shape)}) < 0.5"
    if law is Law.INTEGERS:
        suffix = "" if dtype == "int64" else f", dtype=torch.{dtype}"
        return f"torch.randint({low}, {high}, {_tuple(shape)}{suffix})"
    if law is Law.DISTINCT:
        return f"torch.argsort(torch.rand({_sized(shape)}), dim=-1)"
    return _FLOAT[law].format(
        shape=_tuple(shape) if "randint" in _FLOAT[law] else _sized(shape),
        dtype="" if dtype == "float32" else f", dtype=torch.{dtype}",
        cast=".float()" if dtype == "float32" else f".to(torch.{dtype})",
        name=dtype,
        last=shape.rpartition(",")[2].strip(),
    )


def _sized(shape: str) -> str:
    return shape or "()"


def _tuple(shape: str) -> str:
    if not shape:
        return "()"
    return f"({shape},)" if "," not in shape else f"({shape})"
