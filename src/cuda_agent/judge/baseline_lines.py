"""The baselines of a task by name, what was measured of each, and the figures drawn from them. Pure data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.judge.baseline_names import SETTINGS, Line, Pass, groups_of
from cuda_agent.judge.stats import weighted_times
from cuda_agent.result import Times

_KEPT_SAMPLES = 100


@dataclass(frozen=True)
class LineTimes:
    """One line of one task.

    Attributes:
        samples: of each input case, microseconds a call; empty when it could not be measured.
        weights: of the cases.
        why: why it could not be measured; empty when it was.
        valid: outputs agree with eager's within 1e-2; ``None`` where that was not asked.
        error: largest error over what is allowed (1 is the limit).
        compile_s: seconds to compile.
        measured: date and time, UTC.
    """

    samples: tuple[tuple[float, ...], ...] = ()
    weights: tuple[float, ...] = ()
    why: str = ""
    valid: bool | None = None
    error: float | None = None
    compile_s: float | None = None
    measured: str = ""

    @property
    def times(self) -> Times | None:
        """Of one call over all cases by weight, microseconds."""
        if not self.samples or not all(self.samples):
            return None
        cases = [Times.of(case) for case in self.samples]
        if len(cases) == 1:
            return cases[0]
        return weighted_times(list(zip(self.weights, cases, strict=True)))

    def thinned(self) -> LineTimes:
        """With fewer samples, for keeping."""
        return dataclasses.replace(self, samples=tuple(_thin(case) for case in self.samples))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LineTimes:
        """Inverse of ``dataclasses.asdict``.

        Raises:
            TypeError, KeyError: the data are of another form.
        """
        samples = tuple(tuple(case) for case in data["samples"])
        return cls(**{**data, "samples": samples, "weights": tuple(data["weights"])})


def _thin(samples: Sequence[float]) -> tuple[float, ...]:
    step = -(-len(samples) // _KEPT_SAMPLES)
    return tuple(samples[:: max(1, step)])


@dataclass(frozen=True)
class Work:
    """What one call of a reference moves and computes, all cases by weight.

    Attributes:
        num_bytes: inputs, parameters, buffers and outputs, each once.
        matmul_flops, conv_flops: floating-point operations of matrix products (attention too) and of
            convolutions.
        floor_us: least time for both at the device's measured peaks, microseconds: the roofline.
        bytes_us, flops_us: of each alone.
    """

    num_bytes: float
    matmul_flops: float
    conv_flops: float
    floor_us: float
    bytes_us: float
    flops_us: float


@dataclass(frozen=True)
class TaskBaselines:
    """What is known of one task on one device.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        lines: by name.
        work: bytes and operations; ``None`` where they were not counted.
    """

    kind: str
    lines: Mapping[Line, LineTimes] = field(default_factory=dict)
    work: Work | None = None

    def time_us(self, line: Line) -> float | None:
        """Median of a line, microseconds."""
        times = self.lines[line].times if line in self.lines else None
        return None if times is None else times.median

    def settings_only(self) -> tuple[float, Line] | None:
        """The fastest of eager and the valid settings (on a CPU torch.compile stands where TF32 would).

        ``None`` until all of them were tried.
        """
        tried = [line for group in groups_of(Pass.SECOND, self.kind) for line in group if line in SETTINGS]
        if not all(line in self.lines for line in tried):
            return None
        plain = (Line.EAGER, Line.COMPILE) if self.kind == "cpu" else (Line.EAGER,)
        valid = [line for line in SETTINGS if line in self.lines and self.lines[line].valid]
        found = [(us, line) for line in (*plain, *valid) if (us := self.time_us(line)) is not None]
        return min(found, default=None)

    def flat(self) -> dict[str, Any]:
        """The figures by name, for tables: ``eager_us``, ``settings_only_name``, ``floor_us``, ..."""
        best, work = self.settings_only(), self.work
        always = (Line.EAGER, Line.COMPILE, Line.MAX_AUTOTUNE, Line.CUDA_GRAPH)
        return {
            **{f"{line}_us": self.time_us(line) for line in dict.fromkeys((*always, *self.lines))},
            "settings_only_us": best[0] if best else None,
            "settings_only_name": str(best[1]) if best else None,
            "floor_us": work.floor_us if work else None,
            "floor_bytes_us": work.bytes_us if work else None,
            "floor_flops_us": work.flops_us if work else None,
            "num_bytes": work.num_bytes if work else None,
            "num_flops": work.matmul_flops + work.conv_flops if work else None,
            "why": {str(line): times.why for line, times in self.lines.items() if times.why},
            "valid": {str(k): times.valid for k, times in self.lines.items() if times.valid is not None},
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "kind": self.kind,
            "lines": {str(line): dataclasses.asdict(times) for line, times in self.lines.items()},
            "work": None if self.work is None else dataclasses.asdict(self.work),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskBaselines:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError, KeyError, TypeError: the data are of another form.
        """
        lines = {Line(name): LineTimes.from_dict(times) for name, times in data["lines"].items()}
        return cls(data["kind"], lines, None if data["work"] is None else Work(**data["work"]))
