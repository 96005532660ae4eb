"""One candidate process taken through load, verification and profile.

Faults of the candidate leave as WorkerError or WorkerDied with ``stage`` telling where; the session
confirms them on a fresh process (docs/judging.md, "Verdict and reward").
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Scope, Track
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge import exchange, probes
from cuda_agent.judge.bandwidth import least_us
from cuda_agent.judge.baseline import MAX_DRIFT, BaselineCache, Compiler
from cuda_agent.judge.bystanders import Watch
from cuda_agent.judge.channel import MAX_TEXT
from cuda_agent.judge.evidence import CaseSamples, foreign_compute, manipulation
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.host_load import host_load
from cuda_agent.judge.profile import Profiler, TimedOutputWrong
from cuda_agent.judge.reference import Drawn, Reference
from cuda_agent.judge.undisturbed import undisturbed
from cuda_agent.judge.verify import (
    Checker,
    CheckReport,
    Subject,
    Tally,
    first_failure,
    public_checks,
)
from cuda_agent.result import Stage, Times, Violation, ViolationKind

Say = Callable[[str], None]
_PERTURBED_DRAWS = 2
_PUBLIC_TIMING_SHARE = 0.2
_MOST_SETTINGS = 8
_BUSY_HOST = 0.25
"""Share of the processors in the hands of others from which on clocks that disagree prove nothing."""
_SETTINGS_CHANGED = "the candidate changed settings of PyTorch (put back after each step)"


@dataclass(frozen=True)
class Built:
    """A built candidate: the folder with its sources, the extension, and the names that it defines."""

    folder: Path
    library: Path
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CaseProfile:
    """Times of one case: raw samples, and torch.compile's time with where it came from.

    Attributes:
        samples: of candidate and eager (and live torch.compile).
        compile: torch.compile's time, or ``None`` when it failed.
        note: remark on the baseline.
    """

    samples: CaseSamples
    compile: Times | None
    note: str = ""


@dataclass
class Outcome:
    """What an attempt found.

    Attributes:
        stage: reached.
        failure: first failed check, or ``None``.
        tally: errors and notes.
        cases: times by case; empty when not profiled.
        prepare_us: of one ``prepare()`` call.
        inputs: of each case, in words.
        seconds: by phase.
        saved: failing inputs, for ``explain``.
        perturbed: the reference holds perturbed parameters.
    """

    stage: Stage = Stage.LOAD
    failure: CheckReport | None = None
    tally: Tally = field(default_factory=Tally)
    cases: list[CaseProfile] = field(default_factory=list)
    prepare_us: float | None = None
    inputs: list[tuple[str, ...]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    saved: dict[str, Any] | None = None
    perturbed: bool = False


class Attempt:
    """Takes one candidate process through a scope."""

    def __init__(
        self,
        subject: Subject,
        *,
        facts: DeviceFacts,
        compiler: Compiler,
        cache: BaselineCache,
        watch: Watch,
        seed: int,
        say: Say,
    ) -> None:
        self._subject = subject
        self._watch = watch
        self._facts = facts
        self._compiler = compiler
        self._cache = cache
        self._seed = seed
        self._say = say
        self._checker = Checker(subject)
        self._generator = torch.Generator(device="cpu").manual_seed(secrets.randbits(62))
        self.outcome = Outcome()

    def run(self, built: Built, scope: Scope) -> Outcome:
        """Load, verify and profile as the scope asks.

        Raises:
            WorkerError, WorkerDied: the candidate failed; ``outcome.stage`` says where.
        """
        try:
            return self._run(built, scope)
        finally:
            if changed := sorted(self._subject.candidate.settings)[:_MOST_SETTINGS]:
                self.outcome.tally.note(f"{_SETTINGS_CHANGED}: {', '.join(changed)}"[:MAX_TEXT])

    def _run(self, built: Built, scope: Scope) -> Outcome:
        outcome = self.outcome
        with self._phase("load"):
            self._load(built)
        outcome.stage = Stage.VERIFY
        with self._phase("verify"):
            outcome.failure = first_failure(self._checks(scope), outcome.tally)
            outcome.saved = self._checker.last_failure
        if outcome.failure is not None or scope is Scope.VERIFY:
            return outcome
        outcome.stage = Stage.PROFILE
        if scope is Scope.FULL:
            self._say("timing the candidate against eager and torch.compile")
        with self._phase("profile"):
            outcome.failure = self._profile(scope, built.names)
        if outcome.failure is None:
            outcome.stage = Stage.DONE
        return outcome

    def close(self) -> None:
        """Release memory; may run twice."""
        self._checker.close()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.outcome.seconds[name] = time.monotonic() - start

    def _load(self, built: Built) -> None:
        reference = self._subject.reference
        assert reference.load_block is not None
        with _copy_of(reference.load_block, self._subject) as block:
            self.outcome.prepare_us = self._subject.candidate.load(
                built.folder,
                built.library,
                plan=reference.load_plan,
                block=block,
                seed=self._seed,
            )

    # -- verification -------------------------------------------------------------------------

    def _checks(self, scope: Scope) -> Iterator[CheckReport | None]:
        reference = self._subject.reference
        if scope is Scope.PROFILE:
            for case in range(len(reference.weights)):
                yield self._one_draw(f"check {case + 1}", case)
            return
        yield from public_checks(self._checker, reference, self._subject.config.num_draws, self._say)
        if scope is Scope.FULL:
            self._say("verifying with private inputs and parameters")
            yield from self._private_checks()

    def _one_draw(self, name: str, case: int, *, slot: str = "in0") -> CheckReport | None:
        drawn = self._subject.reference.draw(case=case)
        try:
            return self._checker.check(name, drawn, slot=slot)
        finally:
            drawn.close()

    def _private_checks(self) -> Iterator[CheckReport | None]:
        for case in range(len(self._subject.reference.weights)):
            yield from self._memory_probes(case)
        if self._subject.config.track is Track.MATCHED:
            for case in range(len(self._subject.reference.weights)):
                yield from self._derived_probes(case)
        yield from self._perturbed_parameters()

    def _memory_probes(self, case: int) -> Iterator[CheckReport | None]:
        """A repeated call, new values at the same address, and an output held over later calls."""
        reference, checker = self._subject.reference, self._checker
        first, second = reference.draw(case=case), reference.draw(case=case)
        try:
            yield checker.check("probe: first call", first, hold="held")
            kept = checker.take_last()
            yield checker.check("probe: new values at the same address", second)
            if not kept.shared:  # else the output is the input's memory, which has new values
                yield checker.check_held("probe: held output", "held", kept)
            yield checker.check("probe: a call after another input", first)
            yield checker.check("probe: a repeated call", first)
            kept.close()
        finally:
            first.close()
            second.close()

    def _derived_probes(self, case: int) -> Iterator[CheckReport | None]:
        for name in probes.probe_names():
            drawn = self._subject.reference.draw(case=case)
            inputs = exchange.read(drawn.plan, drawn.block, copy=False)
            derived = probes.derive(inputs, name, self._generator)
            if derived is None:
                drawn.close()
                continue
            plan = exchange.describe(derived)
            block = Block(plan["nbytes"], device=self._subject.place.block_device)
            exchange.write(derived, plan, block)
            self._subject.place.synchronize()
            del inputs, derived
            drawn.close()
            with block:
                yield self._checker.check(
                    f"probe: {name}", Drawn(plan, block, ()), slot="derived", must_be_finite=True
                )

    def _perturbed_parameters(self) -> Iterator[CheckReport | None]:
        reference, candidate = self._subject.reference, self._subject.candidate
        if not reference.state:
            return
        perturbed = probes.perturb_state(reference.state, self._generator)
        for name, state in (("perturbed parameters", perturbed), ("restored parameters", reference.state)):
            plan = exchange.describe(dict(state))
            with Block(plan["nbytes"], device=self._subject.place.block_device) as block:
                exchange.write(dict(state), plan, block)
                self._subject.place.synchronize()
                self.outcome.perturbed = True
                reference.set_state(plan, block)
                self.outcome.perturbed = state is perturbed
                with _copy_of(block, self._subject) as copy:
                    candidate.set_state(plan, copy)
            for index in range(_PERTURBED_DRAWS if state is perturbed else 1):
                yield self._one_draw(f"probe: {name}", index % len(reference.weights))

    # -- profile ------------------------------------------------------------------------------

    def _profile(self, scope: Scope, own: frozenset[str]) -> CheckReport | None:
        weights = self._subject.reference.weights
        share = 1.0 if scope is Scope.FULL else _PUBLIC_TIMING_SHARE
        budget_s = share * self._subject.config.timing_budget_s / len(weights)
        for case in range(len(weights)):
            try:
                profile = self._profile_case(case, budget_s, scope)
            except TimedOutputWrong as wrong:
                return _timed_failure(wrong)
            violation = (
                foreign_compute(profile.samples, own)
                or self._forged(case, profile, budget_s)
                or self._below_floor(case, profile, budget_s)
            )
            if violation is not None:
                return CheckReport(False, violation.detail, violation)
            self.outcome.cases.append(profile)
        return None

    def _forged(self, case: int, profile: CaseProfile, budget_s: float) -> Violation | None:
        """Refused only when a second measurement says the same, on a machine that was the judge's own.

        Raises:
            InfrastructureError: others held the processors meanwhile: no clock says who took the time.
        """
        if manipulation(profile.samples) is None:
            return None
        with host_load() as load:
            violation = manipulation(self._measure(case, budget_s, Scope.FULL))
        if violation is not None and load.others > _BUSY_HOST:
            raise InfrastructureError(
                f"others took {load.others:.0%} of the processors while this was timed: no clock holds",
                "Judge again when the machine is less busy.",
            )
        return violation

    def _below_floor(self, case: int, profile: CaseProfile, budget_s: float) -> Violation | None:
        """Refused only when a second measurement is below the floor too."""
        median = Times.of(profile.samples.candidate).median
        least = least_us(self._subject, self._facts, case, median)
        if median >= least:
            return None
        again = Times.of(self._measure(case, budget_s, Scope.FULL).candidate).median
        if again >= least:
            self.outcome.tally.note(f"a first time of {median:.2f} us, below the floor, did not repeat")
            return None
        return Violation(
            ViolationKind.BELOW_FLOOR,
            f"{max(median, again):.2f} us is below the {least:.2f} us that its bytes take on this device",
        )

    def _profile_case(self, case: int, budget_s: float, scope: Scope) -> CaseProfile:
        cached = self._cache.get(case)
        live_first = cached is None or (scope is Scope.FULL and self._subject.place.kind == "cpu")
        if live_first:
            return self._live(case, budget_s, scope)
        assert cached is not None
        samples = self._measure(case, budget_s, scope)
        eager_now = Times.of(samples.eager).median
        drift = cached.drift(eager_now)
        if scope is Scope.FULL and drift > MAX_DRIFT:
            return self._live(case, budget_s, scope)
        note = cached.why or (
            f"torch.compile measured {cached.measured}, rescaled by eager (drift {drift:.1%})"
        )
        return CaseProfile(samples, cached.rescaled(eager_now), note)

    def _measure(
        self, case: int, budget_s: float, scope: Scope, compiled: Reference | None = None
    ) -> CaseSamples:
        thorough = scope is Scope.FULL

        def measure() -> CaseSamples:
            return Profiler(self._subject, case, budget_s, compiled=compiled, thorough=thorough).run()

        return undisturbed(measure, self._watch, strict=thorough, note=self.outcome.tally.note)

    def _live(self, case: int, budget_s: float, scope: Scope) -> CaseProfile:
        with_sets = self._subject.reference.draw(case=case)
        try:
            compiled: Reference | None = self._compiler.compiled(case, [with_sets])
        finally:
            with_sets.close()
        samples = self._measure(case, budget_s, scope, compiled)
        self._cache.put(
            case, eager=samples.eager, compile=samples.compile, why="" if compiled else self._compiler.why
        )
        if compiled is None:
            return CaseProfile(samples, None, self._compiler.why)
        return CaseProfile(samples, Times.of(samples.compile))


def _timed_failure(wrong: TimedOutputWrong) -> CheckReport:
    if wrong.violation is not None:
        return CheckReport(False, wrong.detail, wrong.violation)
    detail = f"a timed call gave a wrong output: {wrong.detail}"
    return CheckReport(False, detail, Violation(ViolationKind.HIDDEN_STATE, detail))


@contextmanager
def _copy_of(block: Block, subject: Subject) -> Iterator[Block]:
    """The same bytes in memory that the candidate may write without harm."""
    with Block(block.nbytes, device=subject.place.block_device) as copy:
        size = block.nbytes
        copy.bytes[:size].copy_(block.bytes[:size])
        subject.place.synchronize()
        yield copy
