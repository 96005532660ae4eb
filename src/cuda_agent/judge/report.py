"""From what an attempt found to a :class:`cuda_agent.result.Result`: pure assembly, no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Precision, Scope, Track
from cuda_agent.judge.attempt import CaseProfile, Outcome
from cuda_agent.judge.attribution import base_name, shares
from cuda_agent.judge.devices import Place
from cuda_agent.judge.evidence import CaseSamples
from cuda_agent.judge.finding import Finding, Severity
from cuda_agent.judge.reward import milestone
from cuda_agent.judge.stats import ratio_interval, weighted_times
from cuda_agent.result import CaseTimes, Fault, Result, Stage, Times, Violation

_SUSPICIOUS_SPEEDUP = 10.0
_INTERVAL_SEED = 20260228


@dataclass
class Verdict:
    """What every result of one session is stamped with."""

    task_hash: str
    reference: str
    track: Track
    precision: Precision
    place: Place
    facts: DeviceFacts
    versions: Mapping[str, str]
    inputs: tuple[tuple[str, ...], ...] = field(default_factory=tuple)

    def stamp(self, result: Result, candidate_hash: str, scope: Scope) -> Result:
        """The result with the contract, the device, the hashes and, in full scope, the reward."""
        reward = result.reward
        if scope is Scope.FULL and result.correct is False and result.infrastructure is None:
            reward = -1
        return replace(
            result,
            reward=reward,
            track=str(self.track),
            precision=str(self.precision),
            reference=self.reference,
            device=self.facts.name,
            versions=dict(self.versions),
            task_hash=self.task_hash,
            candidate_hash=candidate_hash,
            inputs=self.inputs,
        )


def failed_build(message: str, fault: Fault | None) -> Result:
    """The sources do not build."""
    return Result(stage=Stage.BUILD, correct=False, detail=message, fault=fault)


def forbidden(findings: Sequence[Finding]) -> Result | None:
    """A result when the sources or the built library break a rule by themselves."""
    violations = tuple(Violation(f.kind, f.detail) for f in findings if f.severity is Severity.VIOLATION)
    if not violations:
        return None
    return Result(
        stage=Stage.BUILD,
        compiled=True,
        correct=False,
        violations=violations,
        detail="; ".join(v.detail for v in violations),
    )


def from_fault(outcome: Outcome, fault: Fault | None, detail: str) -> Result:
    """The candidate's code raised, or its process ended."""
    return Result(
        stage=outcome.stage,
        compiled=True,
        correct=False,
        fault=fault,
        detail=detail,
        notes=tuple(outcome.tally.notes),
        seconds=outcome.seconds,
    )


def from_outcome(outcome: Outcome, scope: Scope, *, weights: Sequence[float]) -> Result:
    """An attempt that ran to its end: passed, or failed a check."""
    tally = outcome.tally
    failure = outcome.failure
    result = Result(
        stage=outcome.stage,
        compiled=True,
        correct=failure is None,
        violations=() if failure is None or failure.violation is None else (failure.violation,),
        detail="" if failure is None else failure.detail,
        notes=tuple(tally.notes),
        max_abs_error=tally.max_abs,
        max_rel_error=tally.max_rel,
        scaled_error=dict(tally.scaled) or None,
        error_budget=dict(tally.budget) or None,
        seconds=dict(outcome.seconds),
        prepare_us=outcome.prepare_us,
    )
    if failure is not None or not outcome.cases:
        return result
    return with_times(result, outcome.cases, weights, scope)


def with_times(
    result: Result, profiles: Sequence[CaseProfile], weights: Sequence[float], scope: Scope
) -> Result:
    """Add times, notes on them, intervals and, in full scope, the reward."""
    cases = tuple(
        CaseTimes(
            case=index,
            weight=weight,
            candidate_us=Times.of(profile.samples.candidate),
            eager_us=Times.of(profile.samples.eager),
            compile_us=profile.compile,
        )
        for index, (profile, weight) in enumerate(zip(profiles, weights, strict=True))
    )
    candidate = _weighted([c.candidate_us for c in cases], weights)
    eager = _weighted([c.eager_us for c in cases], weights)
    compiled = [c.compile_us for c in cases if c.compile_us is not None]
    compile_us = _weighted(compiled, weights) if len(compiled) == len(cases) else None
    kernels = [Times.of(p.samples.kernel) for p in profiles if p.samples.kernel]
    walls = [Times.of(p.samples.wall) for p in profiles if p.samples.wall]
    reward = None
    if scope is Scope.FULL:
        reward = milestone(
            True, candidate.median, eager.median, None if compile_us is None else compile_us.median
        )
    return replace(
        result,
        reward=reward,
        candidate_us=candidate,
        eager_us=eager,
        compile_us=compile_us,
        kernel_us=_weighted(kernels, weights) if len(kernels) == len(cases) else None,
        wall_us=_weighted(walls, weights) if len(walls) == len(cases) else None,
        cases=cases if len(cases) > 1 else (),
        notes=(*result.notes, *_timing_notes(profiles, candidate, compile_us)),
        confidence=_intervals(profiles, weights),
    )


def _weighted(times: Sequence[Times], weights: Sequence[float]) -> Times:
    return times[0] if len(times) == 1 else weighted_times(list(zip(weights, times, strict=True)))


def _timing_notes(profiles: Sequence[CaseProfile], candidate: Times, compile_us: Times | None) -> list[str]:
    notes = [profile.note for profile in profiles if profile.note]
    if any(profile.samples.bound for profile in profiles):
        notes.append("the candidate's times were raised to what the judge's own clock or unseen values allow")
    walls = [Times.of(p.samples.wall).median for p in profiles if p.samples.wall]
    if len(profiles) == 1 and walls and walls[0] > 1.1 * candidate.median + 5.0:
        notes.append(
            f"host time exceeds device time: {walls[0]:.1f} us of wall for one call, "
            f"{candidate.median:.1f} us credited"
        )
    if compile_us is not None and compile_us.median > _SUSPICIOUS_SPEEDUP * candidate.median:
        notes.append(f"more than {_SUSPICIOUS_SPEEDUP:.0f} x faster than torch.compile")
    for profile in profiles:
        if profile.samples.kernel_names:
            notes += _kernel_notes(profile.samples)
    return notes


def _kernel_notes(samples: CaseSamples) -> list[str]:
    """The largest kernels, and the share of GPU time by whose they are."""
    by_name = samples.kernel_names
    total = sum(by_name.values()) or 1.0
    top = sorted(by_name.items(), key=lambda item: -item[1])[:4]
    kernels = ", ".join(f"{base_name(name)[:60]} {us / total:.0%}" for name, us in top)
    by_origin = shares(by_name, samples.origins)
    origins = ", ".join(f"{origin} {share:.0%}" for origin, share in by_origin.items())
    return [f"kernels: {kernels}", f"GPU time by origin, as the candidate's process lists it: {origins}"]


def _intervals(profiles: Sequence[CaseProfile], weights: Sequence[float]) -> dict[str, list[float]] | None:
    """95 % intervals of the speed-ups over eager and torch.compile, from the blocks' medians."""
    size = min(len(p.samples.blocks) for p in profiles)
    if size < 2:
        return None
    rows = [
        [
            sum(w * (p.samples.blocks[i][k] or 0.0) for w, p in zip(weights, profiles, strict=True))
            for k in (0, 1, 2)
        ]
        for i in range(size)
    ]
    mine = [row[0] for row in rows]
    found = {"eager": list(ratio_interval([row[1] for row in rows], mine, seed=_INTERVAL_SEED))}
    if all(p.samples.blocks[i][2] is not None for p in profiles for i in range(size)):
        found["compile"] = list(ratio_interval([row[2] for row in rows], mine, seed=_INTERVAL_SEED))
    return found
