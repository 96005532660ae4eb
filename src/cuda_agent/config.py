"""Settings, frozen and checked when made. Standard library only (see docs/architecture.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError


class Device(StrEnum):
    """Where a candidate runs. ``AUTO`` is cuda where a GPU answers, cpu otherwise."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class Track(StrEnum):
    """The contract a result is reported under (docs/judging.md, "Tracks")."""

    MATCHED = "matched"
    PAPER = "paper"


class Precision(StrEnum):
    """Precision contract of the matched track.

    ``DEFAULT``: PyTorch's defaults (matmul fp32, convolution TF32). ``FP32``: TF32 off.
    ``TF32``: TF32 on for both.
    """

    DEFAULT = "default"
    FP32 = "fp32"
    TF32 = "tf32"


class Scope(StrEnum):
    """How much the judge does.

    ``BUILD``: build and load. ``VERIFY``: the public part (five draws, guards). ``PROFILE``: build,
    one check, times. ``FULL``: the private suite and times; the only scope with a reward.
    """

    BUILD = "build"
    VERIFY = "verify"
    PROFILE = "profile"
    FULL = "full"


def cache_dir() -> Path:
    """Where builds, baselines and device facts are kept: ``$CUDA_AGENT_CACHE`` or the XDG cache."""
    if root := os.environ.get("CUDA_AGENT_CACHE"):
        return Path(root)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cuda-agent"


@dataclass(frozen=True)
class JudgeConfig:
    """How a candidate is judged."""

    device: Device = Device.AUTO
    """Device asked for."""
    track: Track = Track.MATCHED
    """Contract reported under."""
    precision: Precision = Precision.DEFAULT
    """Precision contract (matched track only)."""
    gpu: int = 0
    """Index of the GPU to use."""
    num_draws: int = 5
    """Input draws of the public part (the KernelBench protocol)."""
    timing_budget_s: float = 6.0
    """Aim for the whole interleaved timing of candidate and eager, seconds."""
    build_limit_s: float = 300.0
    """Longest build, seconds."""
    run_limit_s: float = 120.0
    """Longest single step of the candidate's process, seconds."""

    def __post_init__(self) -> None:
        _coerce(self, device=Device, track=Track, precision=Precision)
        if self.track is Track.PAPER and self.precision is not Precision.DEFAULT:
            raise UsageError(
                f"track paper has PyTorch's default precision, not {self.precision}",
                "Leave --precision out, or use --track matched.",
            )


@dataclass(frozen=True)
class EpisodeConfig:
    """Limits of one agent episode."""

    max_turns: int = 200
    """Turn limit: 150 in training, 200 in evaluation (paper, section 4)."""
    max_context: int = 131_072
    """Context limit, tokens."""
    time_limit_s: float | None = None
    """Wall-clock limit, seconds."""
    max_output_chars: int = 16_000
    """A tool's output is cut to this, head and tail kept."""
    max_format_errors: int = 5
    """Consecutive malformed actions after which the episode ends."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_context", "max_output_chars", "max_format_errors"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', '-')} must be at least 1")
        if self.time_limit_s is not None and self.time_limit_s <= 0:
            raise UsageError("time-limit must be above 0 seconds")


def _coerce(config: Any, **enums: type[StrEnum]) -> None:
    for name, kind in enums.items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, kind(value))
        except ValueError:
            choices = ", ".join(kind)
            raise UsageError(f"{name} is {value!r}", f"Choose one of: {choices}.") from None
