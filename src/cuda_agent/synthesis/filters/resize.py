"""New sizes for a task whose eager time lies outside of the window: batch and lengths first. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from cuda_agent.synthesis.record import Size, TaskRecord
from cuda_agent.synthesis.scale import with_sizes

_BATCH = re.compile(r"(?i)^(batch|bs|n_batch)")
_MAX_STEP = 64.0
_OFF_CENTER = 1.6


def aim_us(window_us: tuple[float, float]) -> float:
    """The time to aim for: low in the window, where most tasks belong, and clear of its edge."""
    low, high = window_us
    return float(low**0.75 * high**0.25)


def resized(record: TaskRecord, eager_us: float, window_us: tuple[float, float]) -> TaskRecord | None:
    """The task at sizes that should bring its time into the window; ``None`` where no size is free.

    Free sizes are multiplied, the batch by what it can bear and the others by the rest. Time is taken to grow
    with the number of elements; what really comes out is measured again.

    Args:
        record: sizes at their shipped values.
        eager_us: its time there, microseconds.
        window_us: lowest and highest time.
    """
    low, high = window_us
    aim = aim_us(window_us) if eager_us < low * _OFF_CENTER else high / 4
    return scaled(record, aim / max(eager_us, 1.0))


def scaled(record: TaskRecord, factor: float) -> TaskRecord | None:
    """The task with its elements multiplied by a factor, by its free sizes; ``None`` where none is free."""
    factor = min(_MAX_STEP, max(1 / _MAX_STEP, factor))
    free = {name: size for name, size in record.sizes.items() if size.free}
    changed = _grown(free, factor)
    if all(record.sizes[name].shipped == value for name, value in changed.items()):
        return None
    sizes = {
        name: dataclasses.replace(size, shipped=changed.get(name, size.shipped))
        for name, size in record.sizes.items()
    }
    return dataclasses.replace(record, code=with_sizes(record.code, changed), sizes=sizes)


def _grown(free: Mapping[str, Size], factor: float) -> dict[str, int]:
    """Each free size times a part of the factor, batches first."""
    order = sorted(free, key=lambda name: not _BATCH.match(name))
    grown: dict[str, int] = {}
    for index, name in enumerate(order):
        others = len(order) - index
        part = factor if others == 1 else factor ** (1 / others) if factor < 1 else min(factor, 16.0)
        value = _round(free[name].shipped * part, least=free[name].small)
        grown[name] = value
        factor *= free[name].shipped / value
    return grown


def _round(value: float, least: int) -> int:
    """The nearest size that a person would write: 1, 2, 3, 4, 5, 6, 7 or 8 times a power of two."""
    power = 1
    while value / power >= 8:
        power *= 2
    return max(least, power * max(1, round(value / power)))
