"""Calls on values that nobody but the judge has seen, written just before each call.

Timed blocks repeat a few input sets, so a candidate that remembers outputs by the values of its inputs is
quick there. Here every call gets new values at a known address, written while calls on older values run
(threads and clocks stay as they are in the middle of work); eager does the same, and the ratio of both tells
what computing costs. Who is slower here than in the blocks is credited with this.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuda_agent.config import Track
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Drawn
from cuda_agent.judge.verify import Subject, compare_outputs, copy_bytes

_NUM_CALLS = (4, 10)
_BUDGET_S = 2.0
_NUM_CHECKED = 2
_READY_LIMIT_S = 10.0
_POLL_S = 0.0005

# Below this, per call, a slower first look says nothing: caches are cold and idle threads must wake.
_ALLOWANCE_US = {"cpu": 60.0, "cuda": 10.0}
_UNCERTAINTY = {"cpu": 0.30, "cuda": 0.10}


@dataclass
class Samples:
    """Times of single calls on unseen values, microseconds.

    Attributes:
        candidate, eager: as the processes measured them, in pairs on the same values.
    """

    candidate: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)


class OutputWrong(Exception):
    """A call on unseen values gave what the reference does not; the text says how."""


def measure(subject: Subject, case: int, blocks: Mapping[str, Block], sets: Sequence[Drawn]) -> Samples:
    """Time single calls of candidate and eager on new draws.

    Args:
        subject: both processes.
        case: index of the input case.
        blocks: the candidate's input memory by slot, in the order of ``sets``.
        sets: input sets of which the candidate has seen the values; the last one serves to warm up.

    Raises:
        OutputWrong: an output is wrong.
        WorkerError, WorkerDied: the candidate failed.
    """
    samples = Samples()
    chance = random.SystemRandom()
    deadline = time.monotonic() + _BUDGET_S
    checked = set(chance.sample(range(_NUM_CALLS[0]), _NUM_CHECKED))
    with Block(2, device="cpu") as flags:
        for index in range(_NUM_CALLS[1]):
            if index >= _NUM_CALLS[0] and time.monotonic() > deadline:
                break
            drawn = subject.reference.draw(case=case)
            pair = _Pair(subject, drawn, sets[-1], blocks, flags, samples)
            try:
                for job in chance.sample((pair.candidate, pair.eager), 2):
                    job()
                if index in checked:
                    _check(subject, drawn)
            finally:
                drawn.close()
    return samples


@dataclass
class _Pair:
    """One call of each on the same new values, written while calls on older ones run."""

    subject: Subject
    drawn: Drawn
    seen: Drawn
    blocks: Mapping[str, Block]
    flags: Block
    samples: Samples

    def candidate(self) -> None:
        slot, *_, seen = self.blocks
        memory = {seen: self.blocks[seen], slot: self.blocks[slot]}
        plans = [self.seen.plan, self.drawn.plan]

        def release() -> None:
            self._await_ready()
            copy_bytes(self.drawn, self.blocks[slot])
            self._release()

        self.flags.bytes.zero_()
        sample = self.subject.candidate.time_one(memory, plans, flags=self.flags, release=release)
        self.samples.candidate.append(sample)

    def eager(self) -> None:
        self.flags.bytes.zero_()

        def release() -> None:
            self._await_ready()
            self._release()

        sample = self.subject.reference.time_one(self.seen, self.drawn, flags=self.flags, release=release)
        self.samples.eager.append(sample)

    def _await_ready(self) -> None:
        """Until warm-up calls run; a process that never says so is released all the same."""
        deadline = time.monotonic() + _READY_LIMIT_S
        while not self.flags.bytes[1] and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _release(self) -> None:
        self.subject.place.synchronize()
        self.flags.bytes[0] = 1


def _check(subject: Subject, drawn: Drawn) -> None:
    track = subject.config.track
    outputs = subject.candidate.fetch(timed=0)
    expected = subject.reference.run(drawn, float64=track is Track.MATCHED)
    try:
        leaves = compare_outputs(outputs, expected, track)
        if not all(leaf.ok for leaf in leaves):
            raise OutputWrong("; ".join(leaf.detail for leaf in leaves if not leaf.ok))
    finally:
        expected.close()


def least_us(samples: Samples, kind: str, *, eager_us: float) -> float:
    """Least time of one call that calls on unseen values allow, microseconds; 0 when they say nothing.

    The candidate's quickest call on unseen values (noise only adds, and memory helps none of them), corrected
    by what eager's quickest costs over one in the blocks: a factor or so many microseconds, whichever leaves
    less, since nothing tells which it is. Less the uncertainty and the allowance.

    Args:
        samples: of :func:`measure`.
        kind: ``cpu`` or ``cuda``.
        eager_us: median of eager in the blocks, microseconds.
    """
    eager = min(samples.eager)
    quickest = min(samples.candidate)
    corrected = min(quickest * min(1.0, eager_us / eager), quickest - max(0.0, eager - eager_us))
    return max(0.0, corrected * (1.0 - _UNCERTAINTY[kind]) - _ALLOWANCE_US[kind])
