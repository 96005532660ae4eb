"""Where an output is wrong: first wrong elements, and a coarse map of the errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import WorkspaceError
from cuda_agent.signature import describe_inputs

NUM_SHOWN = 8
_MAP_ROWS, _MAP_COLUMNS = 16, 48
# Share of wrong elements in a cell, from none to all.
_SHADES = ".:+*#"


def failure_lines(path: Path, *, tolerance: float = 1e-2) -> list[str]:
    """A saved failure in words.

    Args:
        path: ``failure.pt`` as the judge leaves it.
        tolerance: an element counts as wrong beyond ``tolerance * (1 + abs(expected))``. Where no element
            does (the contract is stricter), the largest errors are shown in its place.

    Raises:
        WorkspaceError: the file cannot be read.
    """
    saved = load_failure(path)
    lines = [f"failing check: {saved['check']}", f"inputs: {', '.join(describe_inputs(saved['inputs']))}"]
    lines.append(f'saved in {path}: torch.load(path, weights_only=True) has "inputs", "expected", "actual"')
    pairs = list(zip(saved["expected"], saved["actual"], strict=False))
    for index, (expected, actual) in enumerate(pairs):
        lines += [f"output {index}:", *(f"  {line}" for line in output_lines(expected, actual, tolerance))]
    return lines


def load_failure(path: Path) -> dict[str, Any]:
    """Read ``failure.pt``; only tensors and plain values are loaded, never code.

    Raises:
        WorkspaceError: not there, or damaged.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not {"check", "inputs", "expected", "actual"} <= saved.keys():
            raise ValueError("keys are missing")
    except Exception as error:  # noqa: BLE001  torch.load raises many kinds
        raise WorkspaceError(
            f"cannot read {path}: {error}", "Run python3 -m utils.verification again."
        ) from None
    return dict(saved)


def output_lines(expected: torch.Tensor, actual: torch.Tensor, tolerance: float) -> list[str]:
    """First wrong elements and the map of one output."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return [f"expected {_form(expected)}, got {_form(actual)}"]
    wrong, error = wrong_elements(expected, actual, tolerance)
    if not bool(wrong.any()):
        largest = error.flatten().argsort(descending=True)[:NUM_SHOWN]
        head = f"no element is off by more than {tolerance:g} * (1 + |expected|); the largest errors:"
        return [head, *_elements(largest, expected, actual)]
    share = wrong.double().mean().item()
    places = wrong.flatten().nonzero().flatten()
    lines = [f"{places.numel()} of {wrong.numel()} elements are wrong ({share:.1%}); the first:"]
    lines += _elements(places[:NUM_SHOWN], expected, actual)
    return [*lines, *_pattern(wrong), *error_map(wrong)]


def wrong_elements(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mask of wrong elements, absolute error as float64), both shaped like the output."""
    a, b = expected.double(), actual.double()
    error = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    limit = tolerance * (1 + a.abs()) if expected.is_floating_point() else torch.zeros_like(a)
    error = torch.where(same, torch.zeros_like(error), error.nan_to_num(nan=float("inf")))
    return ~same & ~(error <= limit), error


def error_map(wrong: torch.Tensor) -> list[str]:
    """The output as rows by last dimension, in coarse cells; a darker sign, more wrong elements."""
    grid = wrong.double().reshape(-1, wrong.shape[-1]) if wrong.dim() else wrong.double().reshape(1, 1)
    rows, columns = min(_MAP_ROWS, grid.shape[0]), min(_MAP_COLUMNS, grid.shape[1])
    cells = torch.nn.functional.adaptive_avg_pool2d(grid[None, None], (rows, columns))[0, 0]
    lines = [
        f"map, {grid.shape[0]} rows by {grid.shape[1]} columns ('.' none wrong, '#' all wrong in a cell):"
    ]
    for row in cells.tolist():
        lines.append("  " + "".join(_shade(value) for value in row))
    return lines


def _shade(share: float) -> str:
    if share <= 0.0:
        return _SHADES[0]
    return _SHADES[min(len(_SHADES) - 1, 1 + int(share * (len(_SHADES) - 1.001)))]


def _elements(places: torch.Tensor, expected: torch.Tensor, actual: torch.Tensor) -> list[str]:
    lines = []
    for place in places.tolist():
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape))
        a, b = expected[index].item(), actual[index].item()
        lines.append(f"  [{', '.join(map(str, index))}] expected {_number(a)}, got {_number(b)}")
    return lines


def _pattern(wrong: torch.Tensor) -> list[str]:
    """A regularity that points at a cause, where there is one."""
    if wrong.dim() == 0 or wrong.shape[-1] < 2:
        return []
    by_column = wrong.reshape(-1, wrong.shape[-1]).double().mean(0)
    rows = wrong.reshape(-1, wrong.shape[-1]).any(-1)
    lines = []
    hit = by_column.nonzero().flatten().tolist()
    if 0 < len(hit) < wrong.shape[-1]:
        lines.append(f"only columns {_ranges(hit)} of {wrong.shape[-1]} (last dimension) are touched")
    bad_rows = rows.nonzero().flatten().tolist()
    if 0 < len(bad_rows) < rows.numel():
        lines.append(f"only rows {_ranges(bad_rows)} of {rows.numel()} are touched")
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3, 8``; a common step is named; cut after a few."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}-{numbers[-1]} in steps of {steps.pop()}"
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{a}-{b}" if a != b else str(a) for a, b in parts[:6]]
    return ", ".join(shown) + (", ..." if len(parts) > 6 else "")


def _form(tensor: torch.Tensor) -> str:
    return describe_inputs([tensor])[0]


def _number(value: float) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
