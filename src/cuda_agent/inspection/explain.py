"""``cuda-agent explain``: why a candidate fails or is slow, on inputs that the agent may see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.backends import get_backend
from cuda_agent.backends.base import Backend, DeviceFacts
from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.inspection.opened import Opened, open_candidate
from cuda_agent.judge.entry import FAILURE_FILE, judge
from cuda_agent.result import Result, Stage
from cuda_agent.runs.summary import format_times, format_us, reasons, verdict

_TOOLS = ("ncu", "compute-sanitizer")


def explain_folder(folder: Path, config: JudgeConfig) -> Iterator[str]:
    """Judge the candidate of a workspace or a run by the public part, and say what is found.

    Lines come while the work is done.

    Raises:
        WorkspaceError, UsageError, TaskError: the folder holds nothing that can be judged.
        ToolchainError: no compiler or device.
    """
    opened = open_candidate(folder, config)
    backend = get_backend(opened.config.device, gpu=opened.config.gpu)
    opened = replace(opened, config=replace(opened.config, device=Device(backend.name)))
    yield f"candidate {opened.snapshot.hash} for task {opened.task.name}, on {backend.name}"
    yield from _recorded(opened)
    result = _judge(opened, Scope.VERIFY)
    yield f"public verification: {verdict(result)}"
    if result.correct:
        yield from _speed(opened, backend)
    else:
        yield from _failure(opened, result)
    if result.compiled:
        yield from _tools(opened, backend, wrong=not result.correct)


def _recorded(opened: Opened) -> Iterator[str]:
    recorded = opened.run.load_result() if opened.run else None
    if recorded is not None:
        yield f"recorded verdict: {verdict(recorded)}, reward {recorded.reward}"
        yield from (f"  {line}" for line in reasons(recorded)[:12])


def _judge(opened: Opened, scope: Scope) -> Result:
    return judge(
        opened.workspace, task=opened.task, config=opened.config, scope=scope, snapshot=opened.snapshot
    )


def _failure(opened: Opened, result: Result) -> Iterator[str]:
    from cuda_agent.inspection.error_map import failure_lines

    yield from (f"  {line}" for line in reasons(result))
    saved = opened.workspace / FAILURE_FILE
    if result.stage is Stage.VERIFY and saved.is_file():
        yield from failure_lines(saved)
    elif result.stage is Stage.VERIFY:
        yield "no failing input is saved: it is large, or the call gave no output"


# -- speed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Least bytes that one call must move: inputs and state read once, outputs written once."""

    read_bytes: int
    written_bytes: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.read_bytes + self.written_bytes

    def seconds(self, facts: DeviceFacts) -> float | None:
        """Time for these bytes at the measured read peak; from cache where they fit, on cpu."""
        fits = facts.kind == "cpu" and self.total <= (facts.cache_bytes or 0)
        peak = (facts.cache_read_bandwidth if fits else None) or facts.read_bandwidth
        return None if peak is None else self.total / peak


def _speed(opened: Opened, backend: Backend) -> Iterator[str]:
    result = _judge(opened, Scope.PROFILE)
    if result.candidate_us is None:
        yield f"profile: {verdict(result)}"
        yield from (f"  {line}" for line in reasons(result))
        return
    for name, times in (
        ("candidate", result.candidate_us),
        ("eager", result.eager_us),
        ("torch.compile", result.compile_us),
        ("candidate, wall", result.wall_us),
        ("candidate, kernels alone", result.kernel_us),
    ):
        if times is not None:
            yield f"{name}: {format_times(times)}"
    yield from (f"note: {note}" for note in result.notes)
    yield from _roofline(opened, backend.facts(), result.candidate_us.median)


def _roofline(opened: Opened, facts: DeviceFacts, time_us: float) -> Iterator[str]:
    traffic = _traffic(opened)
    floor_s = traffic.seconds(facts)
    yield (
        f"bytes of case 0 that must move: {traffic.read_bytes:,} read (inputs, parameters), "
        f"{traffic.written_bytes:,} written"
    )
    if floor_s is None:
        yield "the device's bandwidth is unknown: no floor"
        return
    share = floor_s * 1e6 / time_us
    yield f"floor at the measured peak: {format_us(floor_s * 1e6)}; the candidate reaches {share:.0%} of it"
    if share < 0.5:
        yield "far from the memory floor: arithmetic, launch overhead, extra passes or poor access patterns"


def _traffic(opened: Opened) -> Traffic:
    from cuda_agent.judge.devices import choose_place
    from cuda_agent.judge.exchange import leaves, read
    from cuda_agent.judge.floor import tensor_bytes
    from cuda_agent.judge.reference import Reference

    config = opened.config
    reference = Reference(opened.task, config, choose_place(str(config.device), config))
    try:
        reference.load(0)
        drawn = reference.draw(case=0)
        expected = reference.run(drawn, float64=False)
        inputs = list(leaves(read(drawn.plan, drawn.block, copy=False)))
        read_bytes = tensor_bytes(inputs) + tensor_bytes(reference.state)
        written = tensor_bytes(expected.outputs)
        expected.close()
        drawn.close()
    finally:
        reference.close()
    return Traffic(read_bytes, written)


# -- tools --------------------------------------------------------------------------------------


def _tools(opened: Opened, backend: Backend, *, wrong: bool) -> Iterator[str]:
    if backend.name != "cuda":
        yield "registers, ncu and compute-sanitizer are for CUDA kernels: nothing to show on cpu"
        return
    from cuda_agent.inspection.resources_used import kernel_resources, resource_lines

    kernels = kernel_resources(opened.snapshot, backend, track=opened.config.track)
    yield from resource_lines(kernels) or ["ptxas reports no kernels"]
    yield from _under_tools(opened, backend, wrong=wrong)


def _under_tools(opened: Opened, backend: Backend, *, wrong: bool) -> Iterator[str]:
    from cuda_agent.inspection.resources_used import CallUnderTool
    from cuda_agent.judge.build import build

    found = {tool: shutil.which(tool) for tool in _TOOLS}
    if missing := [tool for tool, path in found.items() if path is None]:
        yield f"not on this machine: {', '.join(missing)} (they come with the CUDA toolkit)"
    ncu, sanitizer = (found[tool] for tool in _TOOLS)
    if not any((ncu, sanitizer)):
        return
    with tempfile.TemporaryDirectory(prefix="cuda-agent-explain-") as folder:
        built = build(
            opened.snapshot,
            backend,
            track=opened.config.track,
            folder=Path(folder) / "build",
            limit_s=opened.config.build_limit_s,
        )
        if built.library is None:
            return
        with CallUnderTool(opened.snapshot, built.library, opened.task) as call:
            if sanitizer and wrong:
                yield from (f"compute-sanitizer: {line}" for line in call.sanitize(sanitizer))
            if ncu:
                yield from (f"ncu: {line}" for line in call.ncu(ncu))
