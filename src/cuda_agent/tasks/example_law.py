"""The law of example inputs: what ``get_inputs`` must draw to give more like them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuda_agent.errors import UsageError
from cuda_agent.tasks.input_spec import Input, InputCase, PlainInput, TensorInput

PLAIN_TYPES = (bool, int, float, str, type(None))
"""Types of arguments that a task's source writes as they are."""


def input_cases(example_inputs: Any) -> tuple[tuple[Any, ...], ...]:
    """The cases in what a caller gave: one tensor, one tuple of arguments, or a list of tuples.

    Raises:
        UsageError: none of these.
    """
    if isinstance(example_inputs, torch.Tensor):
        return ((example_inputs,),)
    if isinstance(example_inputs, tuple) and example_inputs:
        return (example_inputs,)
    if isinstance(example_inputs, list) and example_inputs:
        if all(isinstance(case, tuple) for case in example_inputs):
            if len({len(case) for case in example_inputs}) > 1:
                raise UsageError("example_inputs differ in their number of arguments")
            return tuple(example_inputs)
        if not any(isinstance(case, tuple) for case in example_inputs):
            return (tuple(example_inputs),)
    raise UsageError(
        f"example_inputs is a {type(example_inputs).__name__} that names no arguments",
        "Give a tuple of arguments, or a list of such tuples for several shapes.",
    )


def law_of(examples: Sequence[tuple[Any, ...]]) -> tuple[InputCase, ...]:
    """One input case for each tuple of example arguments.

    Raises:
        UsageError: an argument is neither a dense tensor nor a plain value, or is not finite.
    """
    return tuple(
        InputCase(tuple(_law(value, f"example input {index}") for index, value in enumerate(case)))
        for case in examples
    )


def _law(value: Any, name: str) -> Input:
    if isinstance(value, PLAIN_TYPES):
        return PlainInput(value)
    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"{name} is a {type(value).__name__}",
            "Arguments must be tensors or plain values (not containers).",
        )
    if value.layout is not torch.strided or value.is_complex() or value.is_quantized:
        raise UsageError(
            f"{name} is a {value.dtype} tensor of layout {value.layout}", "Use dense real tensors."
        )
    if value.numel() == 0:
        raise UsageError(f"{name} has no elements", "Give an example of the shape that is used.")
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    values = value.detach().double()
    if dtype == "bool":
        return TensorInput(dtype, shape, mean=_round(values.mean().item()))
    if not value.is_floating_point():
        low, high = int(value.min()), int(value.max())
        return TensorInput(dtype, shape, low=low, high=high + 1)
    if not bool(torch.isfinite(values).all()):
        raise UsageError(f"{name} holds values that are not finite", "Build such masks inside the module.")
    return _floating_law(values, dtype, shape)


def _floating_law(values: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> TensorInput:
    low, high = values.min().item(), values.max().item()
    spread = values.std(correction=0).item() if values.numel() > 1 else 0.0
    # A module that is given one sign only may rely on it (a logarithm, a square root).
    one_sign = spread > 0.0 and (low >= 0.0 or high <= 0.0)
    return TensorInput(
        dtype,
        shape,
        mean=_round(values.mean().item()),
        spread=_round(spread) if low != high else 0.0,
        low=_round(low) if one_sign else None,
        high=_round(high) if one_sign else None,
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")
