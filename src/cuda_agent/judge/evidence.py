"""What was measured of one input case, and what it says of the candidate's honesty."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cuda_agent.judge import unseen
from cuda_agent.judge.attribution import Origin, origin_of, torch_kernels
from cuda_agent.judge.channel import plain_text
from cuda_agent.result import Times, Violation, ViolationKind

# A burst is not flushed, and the host may be what is measured: below this, per call, it says nothing.
HOST_ALLOWANCE_US = {"cpu": 5.0, "cuda": 60.0}
CLOCK_UNCERTAINTY = {"cpu": 0.15, "cuda": 0.05}
MANIPULATED = 0.5
"""Below this share of what a clock allows, a time is forged or remembered."""

# Of one processor, while eager is timed and nothing is asked of the candidate: honest ones take none.
_BUSY_SHARE = 0.15
_MOST_NAMED, _MOST_NAME = 4, 120


@dataclass
class Meanwhile:
    """Processor time of the candidate's process while others were timed, seconds.

    Attributes:
        processor_s: it took.
        wall_s: of the clock.
    """

    processor_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def watch(self, processor_s: Callable[[], float]) -> Iterator[None]:
        """Count what ``processor_s`` grows by within."""
        before, start = processor_s(), time.monotonic()
        yield
        self.wall_s += time.monotonic() - start
        self.processor_s += processor_s() - before

    @property
    def share(self) -> float:
        """Of one processor; 0 when nothing was watched."""
        return self.processor_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass
class CaseSamples:
    """Raw samples of one input case, microseconds, and the medians of each block.

    Attributes:
        candidate, eager, compile: every sample.
        blocks: (candidate, eager, compile or ``None``) medians of each block.
        wall: the judge's clock for one call in a burst, microseconds.
        eager_wall: the same for eager.
        kernel: sums of kernel times (CUDA).
        kernel_names: total by kernel name.
        origins: whose each of them is (``judge/attribution.py``).
        unseen: single calls on values never seen before.
        bound: credited times were raised to the judge's clock or to calls on unseen values.
        manipulated: the process reported less than half of what the judge's clock allows.
        remembered: calls on values seen before take less than half of what calls on unseen ones allow.
        meanwhile: what the candidate's process did while eager was timed.
    """

    candidate: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    blocks: list[tuple[float, float, float | None]] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    eager_wall: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)
    kernel_names: dict[str, float] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    unseen: unseen.Samples | None = None
    bound: bool = False
    manipulated: bool = False
    remembered: bool = False
    meanwhile: Meanwhile = field(default_factory=Meanwhile)

    def raise_to(self, bound_us: float) -> None:
        """Raise the candidate's times so that their median is ``bound_us``."""
        median = Times.of(self.candidate).median
        factor = bound_us / median if median > 0 else 0.0
        self.candidate = [s * factor if factor else bound_us for s in self.candidate]
        self.blocks = [(c * factor if factor else bound_us, e, m) for c, e, m in self.blocks]
        self.bound = True


def wall_bound(wall: Sequence[float], kind: str, *, eager_us: float, eager_wall: Sequence[float]) -> float:
    """Least time of one call that the judge's clock allows, microseconds; 0 when it says nothing.

    The smallest slope (noise only adds), calibrated by what the same clock says of eager against
    eager's own samples, less the stated uncertainty and what the host may cost.

    Args:
        wall: slopes of the candidate's bursts, microseconds for one call.
        kind: ``cpu`` or ``cuda``.
        eager_us: median of eager's samples, microseconds (trusted: no candidate code runs there).
        eager_wall: slopes of eager's bursts.
    """
    overhead = min(eager_wall) / eager_us
    calibrated = min(wall) / max(1.0, overhead)
    return max(0.0, calibrated * (1.0 - CLOCK_UNCERTAINTY[kind]) - HOST_ALLOWANCE_US[kind])


def manipulation(samples: CaseSamples) -> Violation | None:
    """A time that cannot be that of computing the output from the input: forged, or remembered."""
    if samples.manipulated:
        return Violation(
            ViolationKind.TIME_MANIPULATION,
            f"its process reported less than half of the time the judge's clock measured "
            f"({min(samples.wall):.1f} us for one call)",
        )
    if samples.remembered and samples.unseen is not None:
        return Violation(
            ViolationKind.HIDDEN_STATE,
            f"a call on values it has not seen before takes at least {min(samples.unseen.candidate):.1f} us, "
            "more than twice its time on values seen before",
        )
    if samples.meanwhile.share > _BUSY_SHARE:
        return Violation(
            ViolationKind.LATE_WORK,
            f"while eager was timed, and no call of the candidate ran, its threads took "
            f"{samples.meanwhile.share:.0%} of a processor",
        )
    return None


def foreign_compute(samples: CaseSamples, own: Collection[str]) -> Violation | None:
    """Say whose each listed kernel is (``samples.origins``); PyTorch's compute in a timed call breaks a rule.

    Args:
        samples: of one case, with the kernels that CUPTI listed.
        own: names that the candidate's library defines.
    """
    samples.origins = {kernel: origin_of(kernel, own) for kernel in samples.kernel_names}
    found = torch_kernels(samples.kernel_names, own)
    if not found:
        return None
    named = ", ".join(plain_text(name, _MOST_NAME) for name in found[:_MOST_NAMED])
    return Violation(ViolationKind.TORCH_COMPUTE, f"a timed call launched kernels of PyTorch: {named}")
