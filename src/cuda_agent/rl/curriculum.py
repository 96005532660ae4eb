"""Which tasks a step draws."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

SHARES = (0.7, 0.2, 0.1)
"""Of draws from tasks that sometimes pass, unsolved, and solved ones (ours; the paper states none)."""
_SOMETIMES = (0.1, 0.9)
T = TypeVar("T")


def draw(
    tasks: Sequence[tuple[str, T]], number: int, *, rates: Mapping[str, float], seed: int, uniform: bool
) -> list[T]:
    """Different tasks for one step, or each as often as the others where there are fewer than asked for.

    Args:
        tasks: (hash, task); a task without a rate counts as one that sometimes passes.
        rates: last pass rate by hash.
        seed: decides everything.
        uniform: no curriculum.
    """
    generator = random.Random(seed)
    chosen: list[T] = []
    while len(chosen) < number:
        chosen += _round(tasks, min(number - len(chosen), len(tasks)), rates, generator, uniform)
    return chosen


def _round(
    tasks: Sequence[tuple[str, T]],
    number: int,
    rates: Mapping[str, float],
    generator: random.Random,
    uniform: bool,
) -> list[T]:
    left = list(tasks)
    generator.shuffle(left)
    if uniform:
        return [task for _, task in left[:number]]
    pools: tuple[list[T], list[T], list[T]] = ([], [], [])
    for key, task in left:
        pools[_pool(rates.get(key, 0.5))].append(task)
    chosen = []
    for _ in range(number):
        weights = [share if pool else 0.0 for share, pool in zip(SHARES, pools, strict=True)]
        (pool,) = generator.choices(pools, weights)
        chosen.append(pool.pop())
    return chosen


def _pool(rate: float) -> int:
    low, high = _SOMETIMES
    return 0 if low <= rate <= high else (1 if rate < low else 2)
