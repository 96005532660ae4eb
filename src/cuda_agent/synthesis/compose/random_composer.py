"""The random composer: seeds drawn by family, stacked where they fit, sized for a target. No model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from cuda_agent.synthesis.compose.chain import Chain
from cuda_agent.synthesis.compose.mix import TRANSFORMERS, Mix
from cuda_agent.synthesis.compose.plan import Plan
from cuda_agent.synthesis.compose.sizing import cost_of, draw_sizes, is_free
from cuda_agent.synthesis.compose.source import source_of
from cuda_agent.synthesis.families import Family, family_of
from cuda_agent.synthesis.filters.resize import scaled
from cuda_agent.synthesis.record import Size, TaskRecord
from cuda_agent.synthesis.seed import Origin, Seed
from cuda_agent.synthesis.target import Target

_SEED_TRIES = 40
_SIZE_TRIES = 6
_FIT_TRIES = 5
_HALF_SHARE = 0.1
_STARTER_SHARE = 0.55


class RandomComposer:
    """Composes tasks from seeds.

    Args:
        seeds: mined operators.
        mix: shares by number of operators.
        target: device that first sizes are guessed for.
        seed: of all choices; equal ones give equal tasks.

    Attributes:
        dropped: draws that came to nothing, by kind and reason.
    """

    def __init__(self, seeds: Sequence[Seed], mix: Mix, target: Target, *, seed: int = 0) -> None:
        self._mix = mix
        self._target = target
        self._seed = seed
        self._pools = {origin: _by_family(seeds, origin) for origin in Origin}
        self.dropped: Counter[str] = Counter()

    def compose(self, *, start: int = 0, step: int = 1) -> Iterator[tuple[int, TaskRecord]]:
        """Tasks without end, each with its number.

        Number ``n`` depends on the composer's seed and ``n`` alone: shards ``start, start + step, ...`` of
        several processes are together what one process makes.
        """
        number = start
        while True:
            record = self.one(number)
            if record is not None:
                yield number, record
            number += step

    def one(self, number: int) -> TaskRecord | None:
        """Task ``number``, or ``None`` where the draw came to nothing (``dropped`` counts why)."""
        rng = random.Random(f"{self._seed} {number}")
        kind = self._mix.draw(rng)
        plan = self._plan(rng, kind)
        if plan is None:
            self.dropped[f"{kind}: no chain"] += 1
            return None
        record = self._sized(rng, plan, kind)
        if record is None:
            self.dropped[f"{kind}: no sizes"] += 1
        return record

    # -- chains ---------------------------------------------------------------------------------

    def _plan(self, rng: random.Random, kind: str) -> Plan | None:
        chain = Chain(rng)
        origins = _origins(rng, kind)
        share = {1: 0.0, 2: 0.15}.get(len(origins), 0.5)
        join_at = rng.randrange(1, len(origins)) if rng.random() < share else 0
        for position, origin in enumerate(origins):
            if position and position == join_at and chain.join():
                continue
            if not self._extend(chain, origin, last=position == len(origins) - 1):
                return None
        half = rng.random() < _HALF_SHARE and all(_takes_half(step.seed) for step in chain.steps)
        return chain.plan(rng.choice(("float16", "bfloat16")) if half else "float32")

    def _extend(self, chain: Chain, origin: Origin, *, last: bool) -> bool:
        """Put one seed on, drawn by family first: families are even, whatever their sizes."""
        pool = self._pools[origin]
        families = list(pool)
        if not families:
            return False
        for _ in range(_SEED_TRIES):
            seed = chain.rng.choice(pool[chain.rng.choice(families)])
            if chain.put(seed, last=last):
                return True
        return False

    # -- sizes ----------------------------------------------------------------------------------

    def _sized(self, rng: random.Random, plan: Plan, kind: str) -> TaskRecord | None:
        wording = rng.random()
        for _ in range(_SIZE_TRIES):
            small = draw_sizes(plan, rng, small=True)
            shipped = draw_sizes(plan, rng, small=False)
            if cost_of(source_of(plan, small, random.Random(wording))) is None:
                continue
            record = TaskRecord(
                code=source_of(plan, shipped, random.Random(wording)),
                ops=plan.ops,
                data_source=kind,
                seeds=tuple(step.seed.id for step in plan.steps if step.seed is not None),
                sizes={
                    name: Size(small[name], shipped[name], free=is_free(plan, dim))
                    for name, dim in plan.dims.items()
                },
                dtype=plan.dtype,
                by_mode=any(step.seed is not None and step.seed.traits.by_mode for step in plan.steps),
            )
            if (fitted := self._fitted(rng, record)) is not None:
                return fitted
        return None

    def _fitted(self, rng: random.Random, record: TaskRecord) -> TaskRecord | None:
        """Free sizes moved until the estimate is near a time drawn from the window."""
        low, high = self._target.window_us
        top = 5 * low if rng.random() < _STARTER_SHARE else high / 3
        aim = 1.3 * low * (top / (1.3 * low)) ** rng.random()
        for _ in range(_FIT_TRIES):
            cost = cost_of(record.code)
            if cost is None:
                return None
            fits, estimate = cost.fits(self._target), cost.estimate_us(self._target)
            if fits and aim / 2 <= estimate <= 2 * aim:
                return record
            other = scaled(record, aim / estimate if fits else min(0.5, aim / estimate))
            if other is None:
                return record if fits else None
            record = other
        return record if (cost := cost_of(record.code)) and cost.fits(self._target) else None


def _origins(rng: random.Random, kind: str) -> list[Origin]:
    """Where each operator of a task comes from; transformers' stand alone or get one of torch's."""
    if kind == TRANSFORMERS:
        return [Origin.TRANSFORMERS, *[Origin.TORCH] * rng.choices((0, 1), (3, 1))[0]]
    return [Origin.TORCH] * int(kind.rpartition("#")[2])


def _takes_half(seed: Seed | None) -> bool:
    """Whether every floating input may be of half precision."""
    if seed is None:
        return True
    floating = [rule for rule in seed.inputs if "float32" in rule.dtypes]
    return bool(floating) and all({"float16", "bfloat16"} <= set(rule.dtypes) for rule in floating)


def _by_family(seeds: Sequence[Seed], origin: Origin) -> dict[Family, list[Seed]]:
    found: dict[Family, list[Seed]] = {}
    for seed in seeds:
        if seed.origin is origin and seed.traits.fake and seed.forms:
            found.setdefault(family_of(seed.op), []).append(seed)
    return found
