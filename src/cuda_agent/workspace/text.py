"""What the scripts of a workspace print: the public scripts' lines, then what helps to go on.

The text is for the agent to read; it decides nothing.
"""

from __future__ import annotations

from cuda_agent.config import Scope
from cuda_agent.result import Result, Stage, Times

_MAX_DETAIL = 6000
_NO_TIME = "n/a"


def passed(scope: Scope, result: Result) -> bool:
    """Whether the command succeeded: its exit status is 0."""
    if scope is Scope.BUILD:
        return result.compiled and result.correct is not False
    return result.correct is True


def result_lines(scope: Scope, result: Result, *, last_progress: str = "") -> list[str]:
    """Lines to print once the judge is done.

    Args:
        scope: the command.
        result: what came of it.
        last_progress: last line already printed while the judge worked; a failed check said there is
            not said again.
    """
    if result.infrastructure:
        return [
            f"[ERROR] the judge could not work: {result.infrastructure}",
            "This is no verdict; try again.",
        ]
    if not passed(scope, result):
        return _failure_lines(scope, result, last_progress)
    match scope:
        case Scope.BUILD:
            return ["Compile success: cuda_extension.so"]
        case Scope.VERIFY:
            return ["[PASS] verify success", *_notes(result)]
        case _:
            return [profile_text(result), *_speedup_lines(result), *_notes(result)]


def profile_text(result: Result) -> str:
    """``Torch Baseline: 12.345us, Torch Compile: 10.123us, CUDA Extension: 8.901us`` (medians)."""
    return (
        f"Torch Baseline: {_us(result.eager_us)}, Torch Compile: {_us(result.compile_us)}, "
        f"CUDA Extension: {_us(result.candidate_us)}"
    )


def _failure_lines(scope: Scope, result: Result, last_progress: str) -> list[str]:
    detail = _cut(result.detail or "no reason given")
    if result.stage is Stage.BUILD:
        lines = ["Compilation failed.", detail]
    elif scope is Scope.BUILD:
        lines = ["Compilation finished but cuda_extension does not load.", detail]
    elif last_progress.startswith("[FAIL]"):
        lines = []
    else:
        lines = [f"[FAIL] {result.stage}: {detail}"]
    if result.fault is not None:
        lines.append(f"The candidate's process ended: {str(result.fault).replace('_', ' ')}.")
    said = "\n".join([last_progress, *lines])
    lines += [f"[VIOLATION] {v.kind}: {v.detail}" for v in result.violations if v.detail not in said]
    return [*lines, *_notes(result)]


def _speedup_lines(result: Result) -> list[str]:
    """Speed-ups and spread, and wall time where the host is slower than the device."""
    parts = []
    for name, label in (("eager", "eager"), ("compile", "torch.compile")):
        speedup = result.speedup(name)
        if speedup is not None:
            parts.append(f"{speedup:.3f}x over {label}")
    lines = [f"Speed-up: {', '.join(parts)}"] if parts else []
    if result.candidate_us is not None:
        times = result.candidate_us
        lines.append(
            f"CUDA Extension: median of {len(times.samples)} samples, "
            f"p10 {times.p10:.3f}us, p90 {times.p90:.3f}us"
        )
    return lines


def _notes(result: Result) -> list[str]:
    return [f"Note: {note}" for note in result.notes]


def _us(times: Times | None) -> str:
    return _NO_TIME if times is None else f"{times.median:.3f}us"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + " ..."
