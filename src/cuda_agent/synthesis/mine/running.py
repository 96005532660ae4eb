"""Whether a seed runs through its own class: for real, and on fake tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.compose.abstract import apply, seed_class
from cuda_agent.synthesis.law import drawing
from cuda_agent.synthesis.mine.trial import check
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import Value


def seed_runs(
    seed: Seed, form: int = 0, *, dtype: str = "float32", options: Mapping[str, Value] | None = None
) -> bool:
    """Whether a seed's class runs at its base setting on drawn inputs, and gives finite tensors.

    Args:
        seed: to run.
        form: index of its form.
        dtype: of weights and floating inputs.
        options: that differ from the base.
    """
    base = seed.base(form)
    setting = replace(base, options={**base.options, **(options or {})})
    try:
        with torch.no_grad():
            torch.manual_seed(0)
            made = seed_class(seed)(**seed.arguments(setting)).eval().to(getattr(torch, dtype))
            given = [
                None if shape is None else eval(_drawn(seed, index, shape, dtype), {"torch": torch})
                for index, shape in enumerate(seed.shapes(setting))
            ]
            check(tuple(leaves(made(*given))))
    except Exception:  # noqa: BLE001  an operator may refuse in any way
        return False
    return True


def _drawn(seed: Seed, index: int, shape: tuple[int, ...], dtype: str) -> str:
    rule = seed.inputs[index]
    low, high = seed.bounds(seed.base(), index)
    name = dtype if rule.dtypes[0] == "float32" else rule.dtypes[0]
    return drawing(rule.law, ", ".join(map(str, shape)), dtype=name, low=str(low), high=str(high))


def shapes_follow(seed: Seed) -> bool:
    """Whether a seed runs on fake tensors at its base setting."""
    setting = seed.base()
    shapes = [
        None if shape is None else (shape, rule.dtypes[0])
        for shape, rule in zip(seed.shapes(setting), seed.inputs, strict=True)
    ]
    return apply(seed, seed.arguments(setting), shapes) is not None
