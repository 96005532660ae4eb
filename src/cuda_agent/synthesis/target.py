"""The device a set is made for: its time window, memory, and a rough model of it for first sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from cuda_agent.errors import UsageError


class Compile(StrEnum):
    """How a task is compiled by the filters."""

    INDUCTOR = "inductor"
    """As ``torch.compile`` does by default; timed too."""
    CAPTURE = "aot_eager"
    """Captured and decomposed, no code generated and no time taken: seconds cheaper on a CPU."""


@dataclass(frozen=True)
class Target:
    """What the filters hold a task against.

    Attributes:
        name: of the target.
        device: ``cpu`` or ``cuda:N``.
        window_us: eager time of an accepted task, microseconds (the paper: 1 to 100 ms).
        max_bytes: inputs, weights and all that one eager run makes.
        max_input_bytes: inputs alone.
        bytes_per_s, flops_per_s: rough, for the first choice of sizes only; what counts is measured.
        num_samples: timed calls.
        compile: see :class:`Compile`.
        task_limit_s: for one measurement.
    """

    name: str
    device: str
    window_us: tuple[float, float] = (1e3, 1e5)
    max_bytes: int = 60 << 30
    max_input_bytes: int = 8 << 30
    bytes_per_s: float = 3e12
    flops_per_s: float = 4e13
    num_samples: int = 20
    compile: Compile = Compile.INDUCTOR
    task_limit_s: float = 120.0

    def estimate_us(self, num_bytes: float, flops: float, num_kernels: int) -> float:
        """A rough eager time: bytes, operations and launches, one after the other."""
        launches = 4e-6 * num_kernels
        return (num_bytes / self.bytes_per_s + flops / self.flops_per_s + launches) * 1e6


H200 = Target("h200", "cuda:0")
CPU = Target(
    "cpu",
    "cpu",
    max_bytes=1 << 30,
    max_input_bytes=128 << 20,
    bytes_per_s=4e9,
    flops_per_s=3e10,
    num_samples=12,
    task_limit_s=60.0,
)
TARGETS = {target.name: target for target in (H200, CPU)}


def find_target(name: str, **changes: object) -> Target:
    """A target by name, with fields changed.

    Raises:
        UsageError: no such target.
    """
    if name not in TARGETS:
        raise UsageError(f"there is no target {name}", f"Choose one of: {', '.join(TARGETS)}.")
    return replace(TARGETS[name], **changes)  # type: ignore[arg-type]
