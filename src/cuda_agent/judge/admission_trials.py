"""The work behind :func:`cuda_agent.judge.admission.admit`: which checks, in which order, and the tally."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cuda_agent.config import JudgeConfig, Track
from cuda_agent.errors import TaskError
from cuda_agent.judge import exchange, probes
from cuda_agent.judge.admission import Protocol, Trial, TrivialAnswer
from cuda_agent.judge.devicemem import DeviceMemoryError
from cuda_agent.judge.devices import Place
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.reference import Drawn, Expected, Reference
from cuda_agent.judge.trivial import (
    TOLERANCES,
    Contract,
    mean_like,
    unit_error,
    views_like,
    zeros_like,
)

_PERTURBED_DRAWS = 2
# Bytes in use at once, in units of the outputs (eager and float64, in both processes and between them, and
# the outputs of another input), of the inputs (ours, and the float64 run's) and of the float64 run's weights.
_OUTPUTS_HELD, _INPUTS_HELD, _WEIGHTS_HELD = 9, 3, 3


@dataclass
class _Tally:
    """One answer under one protocol so far: worst error over allowance, and where."""

    ratio: float | None = None
    check: str = ""
    void: str = ""


class Trials:
    """What each answer came to so far; one that was refused is not tried again under that protocol.

    Attributes:
        checks: made so far, in order.
        dropped: derived inputs on which the reference is not finite.
        inputs: of the first draw, in words.
    """

    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self.checks: list[str] = []
        self.dropped: list[str] = []
        self.inputs: tuple[str, ...] = ()
        self._tallies = {p: {answer: _Tally() for answer in TrivialAnswer} for p in protocols}

    def alive(self, protocol: Protocol) -> list[TrivialAnswer]:
        """Answers that apply and that nothing refused yet."""
        tallies = self._tallies.get(protocol, {})
        return [a for a, t in tallies.items() if not t.void and (t.ratio is None or t.ratio <= 1)]

    def record(self, protocol: Protocol, answer: TrivialAnswer, ratio: float, check: str) -> None:
        """Take in one comparison: error over allowance."""
        tally = self._tallies[protocol][answer]
        if tally.ratio is None or ratio > tally.ratio:
            tally.ratio, tally.check = ratio, check

    def void(self, answer: TrivialAnswer, why: str) -> None:
        """An answer that does not apply to the task."""
        for tallies in self._tallies.values():
            tallies[answer].void = why

    def results(self, reason: str) -> dict[Protocol, dict[TrivialAnswer, Trial]]:
        """Everything as data; with a reason, answers not refused by then are undecided."""
        return {
            protocol: {answer: _trial(tally, reason) for answer, tally in tallies.items()}
            for protocol, tallies in self._tallies.items()
        }


def _trial(tally: _Tally, reason: str) -> Trial:
    if tally.void:
        return Trial(None, detail=tally.void)
    if tally.ratio is not None and tally.ratio > 1:
        return Trial(False, tally.ratio, tally.check)
    if reason or tally.ratio is None:
        return Trial(None, tally.ratio, tally.check, reason or "no check was made")
    return Trial(True, tally.ratio, tally.check)


class _Check:
    """One set of inputs, what the reference gives for it, and for another input (same weights).

    Args:
        name: of the check.
        drawn, expected: inputs and outputs.
        source: the outputs for another input.
        track: the judge's contract.
    """

    def __init__(
        self, name: str, drawn: Drawn, expected: Expected, *, source: list[Tensor], track: Track
    ) -> None:
        self.name = name
        self.drawn = drawn
        self.source = source
        self.truth = list(exchange.leaves(expected.outputs))
        truth64: list[Tensor | None] = [None] * len(self.truth)
        if expected.outputs64 is not None:
            truth64 = list(exchange.leaves(expected.outputs64))
        self._contracts = [
            Contract(leaf, wide, track, finite=expected.finite)
            for leaf, wide in zip(self.truth, truth64, strict=True)
        ]

    def ratios(self, index: int, answer: Tensor, protocols: Sequence[Protocol]) -> dict[Protocol, float]:
        """Error of an answer for output ``index`` over what each protocol allows."""
        found = {}
        plain = [p for p in protocols if p in TOLERANCES]
        if plain:
            error = unit_error(answer, self.truth[index])
            found = {protocol: error / TOLERANCES[protocol] for protocol in plain}
        if Protocol.JUDGE in protocols:
            found[Protocol.JUDGE] = self._contracts[index].ratio(answer)
        return found


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
        self, reference: Reference, config: JudgeConfig, place: Place, *, trials: Trials, limit_s: float
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
        float64 = self._track is Track.MATCHED and bool(self._trials.alive(Protocol.JUDGE))
        with closing(self._reference.run(drawn, float64=float64)) as expected:
            if must_be_finite and not expected.finite:
                self._trials.dropped.append(name)
                return
            self._trials.checks.append(name)
            check = _Check(name, drawn, expected, source=source, track=self._track)
            for answer in TrivialAnswer:
                wanted = [p for p in protocols if answer in self._trials.alive(p)]
                if wanted:
                    self._try_answer(answer, check, wanted)
            del check

    def _try_answer(self, answer: TrivialAnswer, check: _Check, protocols: Sequence[Protocol]) -> None:
        if answer is TrivialAnswer.IDENTITY:
            self._try_identity(check, protocols)
            return
        with self._answers(answer, check) as leaves:
            for protocol, ratio in _worst(check, leaves, protocols).items():
                self._trials.record(protocol, answer, ratio, check.name)

    @contextmanager
    def _answers(self, answer: TrivialAnswer, check: _Check) -> Iterator[list[Tensor]]:
        if answer is TrivialAnswer.OTHER_WEIGHTS:
            with closing(self._reference.run_other(check.drawn)) as other:
                yield list(exchange.leaves(other.outputs))
        elif answer is TrivialAnswer.ZEROS:
            yield [zeros_like(leaf) for leaf in check.truth]
        elif answer is TrivialAnswer.STALE:
            yield check.source
        else:
            yield [mean_like(was, now) for was, now in zip(check.source, check.truth, strict=False)]

    def _try_identity(self, check: _Check, protocols: Sequence[Protocol]) -> None:
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
        self, index: int, check: _Check, views: Mapping[str, Tensor], protocols: Sequence[Protocol]
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


def _worst(check: _Check, leaves: Sequence[Tensor], protocols: Sequence[Protocol]) -> dict[Protocol, float]:
    if len(leaves) != len(check.truth):
        return dict.fromkeys(protocols, math.inf)
    worst = dict.fromkeys(protocols, 0.0)
    for index, leaf in enumerate(leaves):
        for protocol, ratio in check.ratios(index, leaf, protocols).items():
            worst[protocol] = max(worst[protocol], ratio)
    return worst


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
