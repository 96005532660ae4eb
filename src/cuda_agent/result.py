"""What the judge returns: stage reached, verdict, reasons, times. The keys are those of docs/judging.md.

Standard library only: the judge must import where nothing can be installed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """How far a candidate came. ``DONE`` means correct and timed."""

    BUILD = "build"
    LOAD = "load"
    VERIFY = "verify"
    PROFILE = "profile"
    DONE = "done"


class ViolationKind(StrEnum):
    """A broken rule (docs/judging.md, "Verdict and reward")."""

    TORCH_COMPUTE = "torch_compute"
    FORBIDDEN_LIBRARY = "forbidden_library"
    FORBIDDEN_IMPORT = "forbidden_import"
    TAMPERING = "tampering"
    STALE_OUTPUT = "stale_output"
    LATE_WORK = "late_work"
    MEMORY_REUSE = "memory_reuse"
    INPUT_MUTATION = "input_mutation"
    HIDDEN_STATE = "hidden_state"
    TIME_MANIPULATION = "time_manipulation"
    BELOW_FLOOR = "below_floor"
    PROCESS_ESCAPE = "process_escape"
    PRECISION = "precision"


class Fault(StrEnum):
    """How a candidate's process ended when it did not end by itself."""

    CRASH = "crash"
    ILLEGAL_ACCESS = "illegal_access"
    TIME_OUT = "time_out"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True)
class Violation:
    """One broken rule.

    Attributes:
        kind: which rule.
        detail: what was seen, one line.
    """

    kind: ViolationKind
    detail: str


@dataclass(frozen=True)
class Times:
    """A set of timing samples, microseconds for one call.

    Attributes:
        median, p10, p90: of the samples, microseconds.
        samples: each sample, microseconds, in the order measured.
    """

    median: float
    p10: float
    p90: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Times:
        """Summarise samples (microseconds).

        Raises:
            ValueError: no samples.
        """
        if not samples:
            raise ValueError("no timing samples")
        ordered = sorted(samples)
        return cls(
            median=_quantile(ordered, 0.5),
            p10=_quantile(ordered, 0.1),
            p90=_quantile(ordered, 0.9),
            samples=tuple(samples),
        )


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True)
class CaseTimes:
    """Times of one input case (one of several shapes a task may name).

    Attributes:
        case: index of the case.
        weight: share of calls with this shape; the weights of a task sum to 1.
        candidate_us, eager_us, compile_us: times, microseconds; ``compile_us`` is ``None`` when
            torch.compile failed twice.
    """

    case: int
    weight: float
    candidate_us: Times
    eager_us: Times
    compile_us: Times | None


@dataclass(frozen=True)
class Result:
    """The verdict on one candidate. Absent values are ``None``, never 0 or -1.

    Attributes:
        stage: how far the candidate came.
        compiled: the sources built and the extension loaded.
        correct: verdict; ``None`` when our side failed or the verdict was not sought.
        reward: -1, 1, 2 or 3; ``None`` when our side failed or nothing was timed.
        violations: broken rules; any makes ``correct`` false.
        fault: how the candidate's process died, if it did.
        infrastructure: why our own side failed, if it did. Never trained on.
        notes: facts that are suspicious but allowed, and remarks on the measurement.
        detail: why the candidate failed, in words a model can use (compiler message, first wrong
            elements); empty when it did not.
        track, precision: the contract judged under.
        reference: ``"task"`` when the reference came from a task file, ``"unverified"`` when it was
            the workspace's own model.py.
        device: name of the device timed on.
        versions: torch, cuda, driver, python, cuda_agent.
        candidate_us, kernel_us, wall_us, eager_us, compile_us: times for one call, microseconds,
            over all cases by weight.
        cases: times by input case, when the task has more than one.
        other_us: further baselines by name, microseconds (reported, never used in the reward).
        prepare_us: time of one ``prepare()`` call, microseconds (outside the timed region).
        max_abs_error, max_rel_error: largest over all checks, against eager.
        scaled_error: {"max", "rms"} of e(y) against the float64 reference (track matched).
        error_budget: {"max", "rms"} allowed.
        seconds: wall time by phase.
        inputs: for each input case, the verified inputs as ``float32[8,64]`` (non-tensors as repr).
        task_hash, candidate_hash: content hashes.
        confidence: {"eager": [low, high], "compile": [low, high]}: 95 % intervals of the speed-ups.
    """

    stage: Stage
    compiled: bool = False
    correct: bool | None = None
    reward: int | None = None
    violations: tuple[Violation, ...] = ()
    fault: Fault | None = None
    infrastructure: str | None = None
    notes: tuple[str, ...] = ()
    detail: str = ""
    track: str = "matched"
    precision: str = "default"
    reference: str = "unverified"
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    candidate_us: Times | None = None
    kernel_us: Times | None = None
    wall_us: Times | None = None
    eager_us: Times | None = None
    compile_us: Times | None = None
    cases: tuple[CaseTimes, ...] = ()
    other_us: Mapping[str, float] = field(default_factory=dict)
    prepare_us: float | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    scaled_error: Mapping[str, float] | None = None
    error_budget: Mapping[str, float] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    inputs: tuple[tuple[str, ...], ...] = ()
    task_hash: str | None = None
    candidate_hash: str | None = None
    confidence: Mapping[str, Sequence[float]] | None = None

    def speedup(self, baseline: str) -> float | None:
        """``baseline`` ("eager" or "compile") time over candidate time, or ``None`` if not timed."""
        base: Times | None = getattr(self, f"{baseline}_us")
        if base is None or self.candidate_us is None:
            return None
        return base.median / self.candidate_us.median

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; enums become their values."""
        return dataclasses.asdict(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """One JSON object. Non-finite numbers become ``null``: the text is strict JSON."""
        return json.dumps(_finite(self.to_dict()), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Inverse of :meth:`to_dict`; unknown keys are refused.

        Raises:
            ValueError: unknown key or value.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := set(data) - known:
            raise ValueError(f"unknown result keys: {sorted(unknown)}")
        values = dict(data)
        values["stage"] = Stage(values["stage"])
        values["fault"] = Fault(values["fault"]) if values.get("fault") else None
        values["violations"] = tuple(
            Violation(ViolationKind(v["kind"]), v["detail"]) for v in values.get("violations", ())
        )
        values["notes"] = tuple(values.get("notes", ()))
        for name in ("candidate_us", "kernel_us", "wall_us", "eager_us", "compile_us"):
            values[name] = _times(values.get(name))
        values["inputs"] = tuple(tuple(case) for case in values.get("inputs", ()))
        values["cases"] = tuple(_case(c) for c in values.get("cases", ()))
        return cls(**values)


def _times(data: Mapping[str, Any] | None) -> Times | None:
    if data is None:
        return None
    return Times(data["median"], data["p10"], data["p90"], tuple(data["samples"]))


def _case(data: Mapping[str, Any]) -> CaseTimes:
    candidate, eager = _times(data["candidate_us"]), _times(data["eager_us"])
    if candidate is None or eager is None:
        raise ValueError("a case lacks its times")
    return CaseTimes(data["case"], data["weight"], candidate, eager, _times(data["compile_us"]))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
