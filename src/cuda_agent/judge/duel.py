"""Two candidates of one task timed against each other: interleaved blocks on the same fresh inputs."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.backends import get_backend
from cuda_agent.config import JudgeConfig
from cuda_agent.errors import CudaAgentError, InfrastructureError
from cuda_agent.judge.build import build
from cuda_agent.judge.candidate import Candidate
from cuda_agent.judge.devices import Place, choose_place
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.processes import WorkerDied, WorkerError
from cuda_agent.judge.reference import Drawn, Reference
from cuda_agent.judge.stats import ratio_interval
from cuda_agent.judge.verify import Checker, Subject, copy_bytes
from cuda_agent.pool.lease import lease
from cuda_agent.result import Times
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

_NUM_BLOCKS = 12
_NUM_SETS = 3
# Aim for one side of one block; short, so that drift of the machine falls on both sides alike.
_BLOCK_S = 0.15
# Of the bootstrap: the same samples give the same interval.
_SEED = 20260228


class CandidateUnfit(CudaAgentError):
    """One of the two candidates does not build or is wrong: there is nothing to compare."""


@dataclass(frozen=True)
class Comparison:
    """Times of two candidates on the same inputs.

    Attributes:
        a_us, b_us: times, microseconds for one call.
        ratio: median of A over median of B: above 1, B is faster.
        interval: 95 % interval of the ratio, from the blocks' medians.
    """

    a_us: Times
    b_us: Times
    ratio: float
    interval: tuple[float, float]


def compare_candidates(
    a: Snapshot, b: Snapshot, *, task: Task, config: JudgeConfig | None = None
) -> Comparison:
    """Time two candidates interleaved; each is checked once on fresh inputs first.

    Raises:
        CandidateUnfit: one does not build, or is wrong.
        TaskError, ToolchainError, InfrastructureError: as :func:`cuda_agent.judge.judge`.
    """
    config = config or JudgeConfig()
    place = choose_place(get_backend(config.device, gpu=config.gpu).name, config)
    with ExitStack() as stack:
        reference = Reference(task, config, place)
        stack.callback(reference.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuda-agent-duel-")))
        fighters = [
            _Fighter(name, snapshot, folder / name, config, place) for name, snapshot in (("A", a), ("B", b))
        ]
        for fighter in fighters:
            stack.callback(fighter.close)
            fighter.build()
        stack.enter_context(lease(place.device))
        reference.load(seed=1)
        for fighter in fighters:
            fighter.load(reference)
        return _duel(reference, fighters, place)


class _Fighter:
    """One side: its process, its input memory, its samples."""

    def __init__(
        self, name: str, snapshot: Snapshot, folder: Path, config: JudgeConfig, place: Place
    ) -> None:
        self.name = name
        self._snapshot, self._folder, self._config, self._place = snapshot, folder, config, place
        self._candidate = Candidate(config, place)
        self._blocks: dict[str, Block] = {}
        self._library: Path | None = None
        self.samples: list[float] = []
        self.medians: list[float] = []

    def build(self) -> None:
        outcome = build(
            self._snapshot,
            get_backend(self._config.device, gpu=self._config.gpu),
            track=self._config.track,
            folder=self._folder,
            limit_s=self._config.build_limit_s,
        )
        if outcome.library is None:
            raise CandidateUnfit(f"candidate {self.name} does not build: {outcome.message[:400]}")
        self._library = outcome.library

    def load(self, reference: Reference) -> None:
        """Load it and check one call."""
        assert self._library is not None and reference.load_block is not None
        checker = Checker(Subject(reference, self._candidate, self._config, self._place))
        try:
            self._candidate.settle()
            with Block(reference.load_block.nbytes, device=self._place.block_device) as block:
                block.bytes[: block.nbytes].copy_(reference.load_block.bytes[: block.nbytes])
                self._place.synchronize()
                self._candidate.load(
                    self._folder, self._library, plan=reference.load_plan, block=block, seed=1
                )
            drawn = reference.draw(case=0)
            report = checker.check("check", drawn)
            drawn.close()
        except (WorkerError, WorkerDied) as error:
            raise CandidateUnfit(f"candidate {self.name} fails: {error}") from None
        finally:
            checker.close()
        if report is None or not report.ok:
            detail = "" if report is None else report.detail
            raise CandidateUnfit(f"candidate {self.name} is wrong: {detail}")

    def take(self, sets: Sequence[Drawn]) -> None:
        """Copy inputs into its memory."""
        for index, drawn in enumerate(sets):
            block = self._blocks.get(f"t{index}")
            if block is None or block.nbytes < drawn.plan["nbytes"]:
                if block is not None:
                    block.close()
                block = Block(drawn.plan["nbytes"], device=self._place.block_device)
                self._blocks[f"t{index}"] = block
            copy_bytes(drawn, block)
        self._place.synchronize()

    def time(self, sets: Sequence[Drawn], order: Sequence[int]) -> list[float]:
        try:
            samples, _ = self._candidate.time(
                self._blocks, [d.plan for d in sets], order=order, warmup=2, keep_last=1
            )
        except (WorkerError, WorkerDied) as error:
            raise CandidateUnfit(f"candidate {self.name} fails while timed: {error}") from None
        return samples

    def close(self) -> None:
        self._candidate.close()
        for block in self._blocks.values():
            block.close()
        self._blocks = {}


def _duel(reference: Reference, fighters: Sequence[_Fighter], place: Place) -> Comparison:
    chance = random.SystemRandom()
    num_calls = 0
    for _ in range(_NUM_BLOCKS):
        sets = [reference.draw(case=0) for _ in range(_NUM_SETS)]
        for fighter in fighters:
            fighter.take(sets)
        if num_calls == 0:
            slowest = max(min(f.time(sets, [0, 1, 2])) for f in fighters) / 1e6
            overhead = 3e-4 if place.kind == "cuda" else 0.0
            num_calls = max(3, min(200, int(_BLOCK_S / (slowest + overhead))))
        order = [chance.randrange(_NUM_SETS) for _ in range(num_calls)]
        for fighter in chance.sample(list(fighters), 2):
            time.sleep(0.003)
            samples = fighter.time(sets, order)
            fighter.samples += samples
            fighter.medians.append(Times.of(samples).median)
        for drawn in sets:
            drawn.close()
    first, second = fighters
    a_us, b_us = Times.of(first.samples), Times.of(second.samples)
    if b_us.median <= 0:
        raise InfrastructureError("candidate B reports no time")
    interval = ratio_interval(first.medians, second.medians, seed=_SEED)
    return Comparison(a_us, b_us, a_us.median / b_us.median, interval)
