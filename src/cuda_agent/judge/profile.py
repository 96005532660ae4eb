"""Timing: candidate and eager interleaved in blocks on fresh inputs, outputs of timed calls rechecked.

The candidate's own samples are evidence. The judge's clock bounds them: over bursts of n and of 2 n
calls, the difference over n is the time of one call free of every fixed cost, whatever the candidate's
process says, calibrated by eager's own bursts (docs/judging.md, "Time, and what can be trusted").
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence

import torch

from cuda_agent.config import Track
from cuda_agent.judge import exchange, probes, unseen
from cuda_agent.judge.evidence import MANIPULATED, CaseSamples, wall_bound
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Drawn, Reference
from cuda_agent.judge.verify import Checker, Subject, compare_outputs, copy_bytes
from cuda_agent.result import Times, Violation

_BLOCK_S = 0.12
_MIN_BLOCKS = 5
_MIN_PUBLIC_BLOCKS = 3
_MAX_BLOCKS = 15
_MAX_CALLS = 200
_SETS_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}
_MAX_SETS = 4
_FRESH_DRAW_S = 0.1
_HELD_BYTES = {"cpu": 256 << 20, "cuda": 8 << 30}
_SETTLE_S = 0.003
_NUM_SLOPES = 4
_NUM_SPOTS = 2


class TimedOutputWrong(Exception):
    """A timed call, or one between them, broke a rule or gave what the reference does not.

    Attributes:
        detail: which and how.
        violation: the broken rule, where it is known.
    """

    def __init__(self, detail: str, violation: Violation | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.violation = violation


class Profiler:
    """Times one case of one candidate against eager (and torch.compile, where a live one is given)."""

    def __init__(
        self,
        subject: Subject,
        case: int,
        budget_s: float,
        *,
        compiled: Reference | None = None,
        thorough: bool = True,
    ) -> None:
        """Prepare a measurement.

        Args:
            subject: both processes.
            case: index of the input case.
            budget_s: seconds to aim for.
            compiled: the reference under torch.compile, to be timed live.
            thorough: also read the judge's own clock and the kernels' times.
        """
        self._subject = subject
        self._thorough = thorough
        self._compiled = compiled
        self._output_bytes = 1
        self._changes_inputs = False
        self._case = case
        self._budget_s = budget_s
        self._random = random.SystemRandom()
        self.samples = CaseSamples()
        self._sets: list[Drawn] = []
        self._blocks: dict[str, Block] = {}
        self._checker = Checker(subject, self._blocks)
        # Which blocks have an unannounced check, and whether it comes before the block's calls.
        spots = self._random.sample(range(_MIN_BLOCKS), _NUM_SPOTS) if thorough else []
        self._spots = {index: self._random.random() < 0.5 for index in spots}
        self._generator = torch.Generator(device="cpu").manual_seed(secrets.randbits(62))
        self._draw_s = 0.0
        self._held_in_burst: list[int] = []

    def run(self) -> CaseSamples:
        """Measure.

        Raises:
            TimedOutputWrong: a timed call gave a wrong output.
            WorkerError, WorkerDied: the candidate failed.
        """
        try:
            self._prepare_sets()
            num_calls = self._calls_per_block()
            deadline = time.monotonic() + self._budget_s
            for index in range(_MAX_BLOCKS):
                enough = index >= (_MIN_BLOCKS if self._thorough else _MIN_PUBLIC_BLOCKS)
                if enough and time.monotonic() > deadline:
                    break
                self._block(index, num_calls)
            if self._thorough:
                self._clock(num_calls)
                self._unseen()
                self._kernels()
                self._apply_bound()
            return self.samples
        finally:
            self._release()

    # -- inputs -------------------------------------------------------------------------------

    def _prepare_sets(self) -> None:
        start = time.monotonic()
        first = self._subject.reference.draw(case=self._case)
        self._draw_s = time.monotonic() - start
        room = _SETS_BYTES[self._subject.place.kind] // max(1, first.plan["nbytes"])
        num_sets = max(2, min(_MAX_SETS, room))
        self._sets = [first]
        while len(self._sets) < num_sets:
            self._sets.append(self._subject.reference.draw(case=self._case))
        self._share()
        with_outputs = self._subject.reference.run(first, float64=False)
        self._subject.candidate.make_room(with_outputs.plan["nbytes"])
        self._output_bytes = max(1, with_outputs.plan["nbytes"])
        self._changes_inputs = with_outputs.shared or bool(with_outputs.changed)
        with_outputs.close()

    def _share(self) -> None:
        """Copy the sets into the candidate's input memory (same addresses, new bytes)."""
        for index, drawn in enumerate(self._sets):
            name = f"t{index}"
            block = self._blocks.get(name)
            if block is None or block.nbytes < drawn.plan["nbytes"]:
                if block is not None:
                    block.close()
                block = Block(drawn.plan["nbytes"], device=self._subject.place.block_device)
                self._blocks[name] = block
            copy_bytes(drawn, block)
        self._subject.place.synchronize()

    def _refresh(self) -> None:
        """New values at the same addresses: fresh draws where that is cheap, else the sets rotated."""
        if self._draw_s * len(self._sets) <= _FRESH_DRAW_S * 4 and self._draw_s <= _FRESH_DRAW_S:
            for drawn in self._sets:
                drawn.close()
            self._sets = [self._subject.reference.draw(case=self._case) for _ in self._sets]
        else:
            self._sets = self._sets[1:] + self._sets[:1]
        self._share()

    @property
    def _plans(self) -> list[exchange.Plan]:
        return [drawn.plan for drawn in self._sets]

    # -- measuring ----------------------------------------------------------------------------

    def _calls_per_block(self) -> int:
        order = list(range(len(self._sets)))
        self._time_reference(self._subject.reference, "eager", order, warmup=1)
        eager = self._time_reference(self._subject.reference, "eager", order, warmup=1)
        mine, _ = self._time_candidate(order, warmup=2)
        slowest = max(min(eager), min(mine)) / 1e6
        # A flush and a wait go with every CUDA sample.
        overhead = 3e-4 if self._subject.place.kind == "cuda" else 0.0
        return max(2, min(_MAX_CALLS, int(_BLOCK_S / (slowest + overhead))))

    def _block(self, index: int, num_calls: int) -> None:
        if index:
            self._refresh()
        order = [self._random.randrange(len(self._sets)) for _ in range(num_calls)]
        jobs = ["candidate", "eager", *(["compile"] if self._compiled else [])]
        self._random.shuffle(jobs)
        medians: dict[str, float] = {}
        for job in jobs:
            time.sleep(_SETTLE_S)
            early = self._spots.get(index)
            if job == "candidate" and early is True:
                self._spot_check()
            samples = self._job(job, order)
            if job == "candidate" and early is False:
                self._spot_check()
            getattr(self.samples, job).extend(samples)
            medians[job] = Times.of(samples).median
        self.samples.blocks.append((medians["candidate"], medians["eager"], medians.get("compile")))

    def _job(self, job: str, order: Sequence[int]) -> list[float]:
        warmup = min(3, len(order))
        if job == "compile" and self._compiled is not None:
            return self._time_reference(self._compiled, "compile", order, warmup=warmup)
        if job == "eager":
            with self.samples.meanwhile.watch(self._subject.candidate.processor_s):
                return self._time_reference(self._subject.reference, "eager", order, warmup=warmup)
        samples, held = self._time_candidate(order, warmup=warmup)
        if self._changes_inputs:
            # By now the timed calls have worked on their own results: checked on fresh inputs instead.
            self._spot_check()
        else:
            self._recheck(held)
        return samples

    @property
    def _num_held(self) -> int:
        room = _HELD_BYTES[self._subject.place.kind] // self._output_bytes
        return max(1, min(8, room))

    def _time_reference(
        self, reference: Reference, which: str, order: Sequence[int], *, warmup: int
    ) -> list[float]:
        return reference.time(which, self._sets, order=order, warmup=warmup, keep_last=self._num_held)

    def _time_candidate(self, order: Sequence[int], *, warmup: int) -> tuple[list[float], list[int]]:
        return self._subject.candidate.time(
            self._blocks, self._plans, order=order, warmup=warmup, keep_last=self._num_held
        )

    def _recheck(self, held: Sequence[int]) -> None:
        """The output of one timed call, drawn at random among those held, must be right."""
        pick = self._random.randrange(len(held))
        outputs = self._subject.candidate.fetch(timed=pick)
        drawn = self._sets[held[pick]]
        config = self._subject.config
        expected = self._subject.reference.run(drawn, float64=config.track is Track.MATCHED)
        try:
            leaves = compare_outputs(outputs, expected, config.track)
            if not all(leaf.ok for leaf in leaves):
                raise TimedOutputWrong("; ".join(leaf.detail for leaf in leaves if not leaf.ok))
        finally:
            expected.close()

    def _spot_check(self) -> None:
        """A full check in the memory of the timed calls, on inputs that differ little from theirs.

        Who answers timed calls otherwise than checked ones (by counting calls, by address) or knows an
        input by a sample of it is caught here.
        """
        index = self._random.randrange(len(self._sets))
        drawn = self._sets[index]
        inputs = exchange.read(drawn.plan, drawn.block, copy=False)
        derived = probes.derive(inputs, "one_row", self._generator)
        derived = derived or probes.derive(inputs, "permute_batch", self._generator) or inputs
        plan = exchange.describe(derived)
        if plan != drawn.plan:
            derived, plan = inputs, drawn.plan
        with Block(plan["nbytes"], device=self._subject.place.block_device) as block:
            exchange.write(derived, plan, block)
            self._subject.place.synchronize()
            varied = Drawn(plan, block, drawn.words)
            report = self._checker.check(
                "a call between timed ones", varied, slot=f"t{index}", must_be_finite=True
            )
        if report is not None and not report.ok:
            raise TimedOutputWrong(report.detail, report.violation)
        copy_bytes(drawn, self._blocks[f"t{index}"])
        self._subject.place.synchronize()

    def _clock(self, num_calls: int) -> None:
        """The judge's own clock: slopes over bursts of n and 2 n calls, of eager and of the candidate."""
        for _ in range(_NUM_SLOPES):
            self._refresh()
            self.samples.eager_wall.append(_slope(num_calls, self._burst_eager))
            self.samples.wall.append(_slope(num_calls, self._burst_candidate))
            if not self._changes_inputs:
                self._recheck(self._held_in_burst)

    def _burst_eager(self, num_calls: int) -> None:
        self._subject.reference.burst(self._sets, num_calls=num_calls, keep_last=self._num_held)

    def _burst_candidate(self, num_calls: int) -> None:
        self._held_in_burst = self._subject.candidate.burst(
            self._blocks, self._plans, num_calls=num_calls, keep_last=self._num_held
        )

    def _unseen(self) -> None:
        """Single calls on values never seen before."""
        if self._changes_inputs:
            return  # every timed call of such a task works on values of its own
        try:
            self.samples.unseen = unseen.measure(self._subject, self._case, self._blocks, self._sets)
        except unseen.OutputWrong as wrong:
            raise TimedOutputWrong(str(wrong)) from None

    def _kernels(self) -> None:
        if self._subject.place.kind == "cuda":
            self.samples.kernel, self.samples.kernel_names = self._subject.candidate.kernels(
                self._blocks, self._plans, num_calls=3
            )

    def _apply_bound(self) -> None:
        samples, kind = self.samples, self._subject.place.kind
        eager_us = Times.of(samples.eager).median
        clock = wall_bound(samples.wall, kind, eager_us=eager_us, eager_wall=samples.eager_wall)
        fresh = unseen.least_us(samples.unseen, kind, eager_us=eager_us) if samples.unseen else 0.0
        median = Times.of(samples.candidate).median
        if median < max(clock, fresh):
            samples.raise_to(max(clock, fresh))
        samples.manipulated = median < MANIPULATED * clock
        samples.remembered = not samples.manipulated and median < MANIPULATED * fresh

    def _release(self) -> None:
        for drawn in self._sets:
            drawn.close()
        self._checker.close()
        self._sets = []


def _slope(num_calls: int, burst: Callable[[int], None]) -> float:
    """Wall time of one call free of fixed costs, microseconds: (t(2 n) - t(n)) / n."""
    spans = []
    for factor in (1, 2):
        start = time.perf_counter()
        burst(num_calls * factor)
        spans.append(time.perf_counter() - start)
    return max(0.0, (spans[1] - spans[0]) / num_calls * 1e6)
