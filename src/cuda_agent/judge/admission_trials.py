"""The work behind :func:`cuda_agent.judge.admission.admit`: which checks, in which order, how long."""

from __future__ import annotations

import math
import time
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from cuda_agent.config import JudgeConfig, Track
from cuda_agent.errors import TaskError
from cuda_agent.judge import exchange, probes
from cuda_agent.judge.admission import Protocol, TrivialAnswer
from cuda_agent.judge.admission_tally import Check, Trials
from cuda_agent.judge.devicemem import DeviceMemoryError
from cuda_agent.judge.devices import Place
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Drawn, Expected, ReferenceRefused
from cuda_agent.judge.trivial import mean_like, views_like, zeros_like
from cuda_agent.judge.worker import Refused

__all__ = ["Admitter", "Runner", "Trials"]

_PERTURBED_DRAWS = 2
# Bytes in use at once, in units of the outputs (eager and float64, in both processes and between them, and
# the outputs of another input), of the inputs (ours, and the float64 run's) and of the float64 run's weights.
_OUTPUTS_HELD, _INPUTS_HELD, _WEIGHTS_HELD = 9, 3, 3


class Runner(typing.Protocol):
    """What an :class:`Admitter` asks of a reference (:class:`cuda_agent.judge.reference.Reference`)."""

    @property
    def weights(self) -> tuple[float, ...]: ...
    @property
    def state(self) -> dict[str, Tensor]: ...
    @property
    def load_plan(self) -> exchange.Plan: ...
    def load(self, seed: int) -> None: ...
    def construct_other(self, seed: int) -> bool: ...
    def set_state(self, plan: exchange.Plan, block: Block) -> None: ...
    def draw(self, *, case: int, seed: int) -> Drawn: ...
    def run(self, drawn: Drawn, *, float64: bool, check: bool = False) -> Expected: ...
    def run_other(self, drawn: Drawn) -> Expected: ...


class Admitter:
    """Takes one task through the checks of docs/judging.md, "Verification", until every answer is refused.

    Args:
        reference: not loaded yet.
        config: contract; ``run_limit_s`` bounds one step.
        place: the device.
        trials: receives the outcome.
        limit_s: seconds until no further check is begun.
    """

    def __init__(
        self, reference: Runner, config: JudgeConfig, place: Place, *, trials: Trials, limit_s: float
    ) -> None:
        self._reference = reference
        self._place = place
        self._trials = trials
        self._track = config.track
        self._num_draws = config.num_draws
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._sources: dict[int, list[Tensor]] = {}
        self._views: dict[tuple[Protocol, int], dict[str, float]] = {}
        self._generator = torch.Generator(device="cpu")
        self._seeds = 0

    def run(self, seed: int) -> None:
        """Make the checks; ``trials`` holds what they came to, also when an error leaves.

        Raises:
            TaskError: the task cannot be tried, or no further.
            InfrastructureError: our own side failed.
        """
        self._seeds = seed << 20
        self._generator.manual_seed(seed)
        with _memory_errors():
            self._reference.load(seed)
            self._other_weights(seed + 1)
            self._own_draws()
            if self._track is Track.MATCHED:
                self._derived()
            self._perturbed()

    def _other_weights(self, seed: int) -> None:
        if not self._reference.state:
            self._trials.void(TrivialAnswer.OTHER_WEIGHTS, "the model has no weights")
        else:
            self._reference.construct_other(seed)

    # -- the plan -----------------------------------------------------------------------------

    def _own_draws(self) -> None:
        num_cases = len(self._reference.weights)
        total = max(self._num_draws, num_cases)
        for index in range(total):
            if not any(self._trials.alive(protocol) for protocol in Protocol):
                return
            with closing(self._draw(index % num_cases)) as drawn:
                self._try(f"draw {index + 1}", drawn, index % num_cases, tuple(Protocol))

    def _derived(self) -> None:
        for case in range(len(self._reference.weights)):
            for name in probes.probe_names():
                if not self._trials.alive(Protocol.JUDGE):
                    return
                with closing(self._draw(case)) as own:
                    derived = self._derive(own, name)
                if derived is not None:
                    with closing(derived):
                        self._try(name, derived, case, (Protocol.JUDGE,), must_be_finite=True)

    def _derive(self, own: Drawn, name: str) -> Drawn | None:
        """Derived inputs; ``None`` where the probe changes nothing."""
        derived = probes.derive(exchange.read(own.plan, own.block, copy=False), name, self._generator)
        if derived is None:
            return None
        plan = exchange.describe(derived)
        block = Block(plan["nbytes"], device=self._place.block_device)
        exchange.write(derived, plan, block)
        self._place.synchronize()
        return Drawn(plan, block, own.words)

    def _perturbed(self) -> None:
        """Parameters and buffers moved away from their defaults: baked-in weights show."""
        if not self._reference.state or not self._trials.alive(Protocol.JUDGE):
            return
        state = probes.perturb_state(self._reference.state, self._generator)
        plan = exchange.describe(dict(state))
        with Block(plan["nbytes"], device=self._place.block_device) as block:
            exchange.write(dict(state), plan, block)
            self._place.synchronize()
            self._reference.set_state(plan, block)
        del state
        self._sources.clear()
        for index in range(_PERTURBED_DRAWS):
            if not self._trials.alive(Protocol.JUDGE):
                return
            case = index % len(self._reference.weights)
            with closing(self._draw(case)) as drawn:
                self._try(f"perturbed weights {index + 1}", drawn, case, (Protocol.JUDGE,))

    # -- one check ----------------------------------------------------------------------------

    def _draw(self, case: int) -> Drawn:
        self._in_time()
        self._seeds += 1
        return self._reference.draw(case=case, seed=self._seeds)

    def _source(self, case: int) -> list[Tensor]:
        """The output for an input that no check uses, under the present weights."""
        if case not in self._sources:
            with closing(self._draw(case)) as drawn:
                self._trials.inputs = self._trials.inputs or drawn.words
                with closing(self._reference.run(drawn, float64=False, check=True)) as expected:
                    self._room(drawn, expected)
                    self._sources[case] = [leaf.clone() for leaf in exchange.leaves(expected.outputs)]
        return self._sources[case]

    def _try(
        self,
        name: str,
        drawn: Drawn,
        case: int,
        protocols: Sequence[Protocol],
        *,
        must_be_finite: bool = False,
    ) -> None:
        source = self._source(case)
        self._in_time()
        expected = self._run(name, drawn, may_fail=must_be_finite)
        if expected is None:
            return
        with closing(expected):
            if must_be_finite and not expected.finite:
                self._trials.dropped.append(name)
                return
            self._trials.checks.append(name)
            check = Check(name, drawn, expected, source=source, track=self._track)
            for answer in TrivialAnswer:
                wanted = [p for p in protocols if answer in self._trials.alive(p)]
                if wanted:
                    self._try_answer(answer, check, wanted)
            del check  # its tensors lie in memory that goes now

    def _run(self, name: str, drawn: Drawn, *, may_fail: bool) -> Expected | None:
        """Expected outputs; ``None`` where the reference raises on inputs that are not its own draw."""
        float64 = self._track is Track.MATCHED and bool(self._trials.alive(Protocol.JUDGE))
        try:
            return self._reference.run(drawn, float64=float64)
        except (ReferenceRefused, Refused):  # Refused: where it runs in this process
            if not may_fail:
                raise
            self._trials.dropped.append(name)
            return None

    def _try_answer(self, answer: TrivialAnswer, check: Check, protocols: Sequence[Protocol]) -> None:
        if answer is TrivialAnswer.IDENTITY:
            self._try_identity(check, protocols)
            return
        with self._answers(answer, check) as leaves:
            for protocol, ratio in check.worst(leaves, protocols).items():
                self._trials.record(protocol, answer, ratio, check.name)

    @contextmanager
    def _answers(self, answer: TrivialAnswer, check: Check) -> Iterator[list[Tensor]]:
        if answer is TrivialAnswer.OTHER_WEIGHTS:
            with closing(self._reference.run_other(check.drawn)) as other:
                yield list(exchange.leaves(other.outputs))
        elif answer is TrivialAnswer.ZEROS:
            yield [zeros_like(leaf) for leaf in check.truth]
        elif answer is TrivialAnswer.STALE:
            yield check.source
        else:
            yield [mean_like(was, now) for was, now in zip(check.source, check.truth, strict=False)]

    def _try_identity(self, check: Check, protocols: Sequence[Protocol]) -> None:
        """For each output the way of returning an input that errs least, over all checks so far."""
        inputs = list(exchange.leaves(exchange.read(check.drawn.plan, check.drawn.block, copy=False)))
        views = [views_like(inputs, leaf) for leaf in check.truth]
        if not all(views):
            self._trials.void(TrivialAnswer.IDENTITY, "no input has the form of every output")
            return
        worst = dict.fromkeys(protocols, 0.0)
        for index, named in enumerate(views):
            for protocol, ratio in self._least(index, check, named, protocols).items():
                worst[protocol] = max(worst[protocol], ratio)
        for protocol, ratio in worst.items():
            self._trials.record(protocol, TrivialAnswer.IDENTITY, ratio, check.name)

    def _least(
        self, index: int, check: Check, views: Mapping[str, Tensor], protocols: Sequence[Protocol]
    ) -> dict[Protocol, float]:
        known = {p: self._views.setdefault((p, index), dict.fromkeys(views, 0.0)) for p in protocols}
        for name in {name for ratios in known.values() for name in ratios}:
            wanted = [p for p in protocols if known[p][name] <= 1]
            if not wanted:
                continue
            found = (
                check.ratios(index, views[name], wanted) if name in views else dict.fromkeys(wanted, math.inf)
            )
            for protocol, ratio in found.items():
                known[protocol][name] = max(known[protocol][name], ratio)
        return {protocol: min(ratios.values()) for protocol, ratios in known.items()}

    def close(self) -> None:
        """Release what is held between checks; may run twice."""
        self._sources.clear()
        if self._place.kind == "cuda":
            torch.cuda.empty_cache()  # the next task's reference runner is another process

    # -- limits -------------------------------------------------------------------------------

    def _in_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TaskError(f"out of time: its checks take more than {self._limit_s:g} s")

    def _room(self, drawn: Drawn, expected: Expected) -> None:
        """Refuse a task that would not fit, before the machine kills someone for it."""
        needed = _OUTPUTS_HELD * expected.plan["nbytes"] + _INPUTS_HELD * drawn.plan["nbytes"]
        needed += _WEIGHTS_HELD * self._reference.load_plan["nbytes"]
        free = _free_bytes(self._place)
        if needed > free:
            raise TaskError(
                f"too large for {self._place.device}: its checks take {needed / 2**30:.1f} GiB, "
                f"{free / 2**30:.1f} GiB are free"
            )


def _free_bytes(place: Place) -> int:
    if place.kind == "cuda":
        return int(torch.cuda.mem_get_info(place.device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise TaskError("this system does not say how much memory is free")


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Memory that runs out on our side is the task's size, not a failure of ours."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, DeviceMemoryError) as error:
        raise TaskError(f"too large: {' '.join(str(error).split())[:200]}") from None
    except RuntimeError as error:  # what torch raises on a CPU
        if "allocate memory" not in str(error):
            raise
        raise TaskError(f"too large: {' '.join(str(error).split())[:200]}") from None
