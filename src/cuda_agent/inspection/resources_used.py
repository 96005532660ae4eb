"""Registers and spills of CUDA kernels, and what ncu and compute-sanitizer say of a call."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent import runtime
from cuda_agent.backends.base import Backend
from cuda_agent.config import Track
from cuda_agent.judge.build import fixed_files
from cuda_agent.sandbox.process import clean_env, spawn
from cuda_agent.task import Task
from cuda_agent.tasks.targets import save_task
from cuda_agent.workspace.snapshot import Snapshot

_LIMIT_S = 300.0
_MAX_KERNELS = 12
_METRICS = {
    "gpu__time_duration.sum": "time",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
    "launch__registers_per_thread": "registers",
}
_FUNCTION = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass(frozen=True)
class KernelResources:
    """What ptxas says of one kernel: registers a thread, spilled bytes a thread, static shared bytes."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int


def kernel_resources(snapshot: Snapshot, backend: Backend, *, track: Track) -> list[KernelResources]:
    """Compile the ``.cu`` files once more, with ptxas reporting; empty where there are none."""
    found: list[KernelResources] = []
    with tempfile.TemporaryDirectory(prefix="cuda-agent-ptxas-") as name:
        folder = Path(name)
        _write_sources(snapshot, folder)
        for source in sorted((folder / "kernels").glob("*.cu")):
            step = backend.compile_step(source, folder / "out.o", root=folder, track=track)
            argv = [step.argv[0], "-Xptxas", "-v", *step.argv[1:]]
            found += parse_ptxas(_output(argv, folder))
    return found


def parse_ptxas(text: str) -> list[KernelResources]:
    """Read the report of ``ptxas -v``."""
    kernels = []
    name, stores, loads = "", 0, 0
    for line in text.splitlines():
        if match := _FUNCTION.search(line):
            name, stores, loads = match[1], 0, 0
        elif match := _SPILLS.search(line):
            stores, loads = int(match[2]), int(match[3])
        elif name and (match := _USED.search(line)):
            kernels.append(KernelResources(demangled(name), int(match[1]), stores, loads, int(match[2] or 0)))
            name = ""
    return kernels


def demangled(name: str) -> str:
    """A C++ symbol in source form where ``c++filt`` is here; parameters are left out."""
    tool = shutil.which("c++filt") or shutil.which("cu++filt")
    if tool is None:
        return name
    text = subprocess.run([tool, name], capture_output=True, text=True, check=False).stdout.strip()
    return text.split("(")[0].removeprefix("void ") or name


def resource_lines(kernels: Sequence[KernelResources]) -> list[str]:
    """One line for each kernel; spills are named as what they are."""
    lines = []
    for kernel in kernels[:_MAX_KERNELS]:
        spills = kernel.spill_stores + kernel.spill_loads
        about = (
            f"SPILLS {kernel.spill_stores} B stored, {kernel.spill_loads} B loaded" if spills else "no spills"
        )
        lines.append(f"{kernel.name}: {kernel.registers} registers, {about}, {kernel.shared_bytes} B shared")
    return lines


class CallUnderTool:
    """Runs one call of a candidate under a tool, in a process of its own; a context manager."""

    def __init__(self, snapshot: Snapshot, library: Path, task: Task) -> None:
        self._snapshot, self._library, self._task = snapshot, library, task
        self._folder = tempfile.TemporaryDirectory(prefix="cuda-agent-tool-")

    def __enter__(self) -> CallUnderTool:
        root = Path(self._folder.name)
        save_task(self._task, root / "task")
        self._snapshot.write(root / "candidate")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def ncu(self, tool: str) -> list[str]:
        """ncu's numbers for each kernel of a call."""
        argv = [tool, "--csv", "--page", "raw", "--metrics", ",".join(_METRICS), "-c", "40", *self._call()]
        return parse_ncu(self._run(argv))

    def sanitize(self, tool: str) -> list[str]:
        """compute-sanitizer's first findings and its summary."""
        text = self._run([tool, "--tool", "memcheck", *self._call()])
        lines = [line.lstrip("= ") for line in text.splitlines() if line.startswith("=====")]
        return [line for line in lines if line][:12] or ["compute-sanitizer printed nothing"]

    def _call(self) -> list[str]:
        root = Path(self._folder.name)
        script = Path(runtime.__file__).with_name("one_call.py")
        paths = [root / "candidate" / "model_new.py", self._library, root / "task" / "model.py"]
        return [sys.executable, str(script), *map(str, paths), *self._task.search_path]

    def _run(self, argv: Sequence[str]) -> str:
        return _output(argv, Path(self._folder.name))


def parse_ncu(text: str) -> list[str]:
    """One line for each kernel of ncu's raw CSV page."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(table))
    if len(rows) < 2:
        tail = [line for line in text.splitlines() if line.strip()][-2:]
        return [f"ncu gave no numbers: {' '.join(tail)}" if tail else "ncu gave no numbers"]
    return [_kernel_line(row, units=rows[0]) for row in rows[1:]]


def _kernel_line(row: dict[str, str], units: dict[str, str]) -> str:
    measured = ", ".join(_measured(row, units)) or "nothing measured: it did not run to its end"
    return f"{row['Kernel Name'].split('(')[0]}: {measured}"


def _measured(row: dict[str, str], units: dict[str, str]) -> Iterator[str]:
    for metric, label in _METRICS.items():
        value = row.get(metric)
        if value and value != "nan":
            unit = units.get(metric, "")
            yield f"{label} {value}" + (f" {unit}" if unit and "%" not in label else "")


def _write_sources(snapshot: Snapshot, folder: Path) -> None:
    snapshot.write(folder)
    for name, content in fixed_files().items():
        (folder / name).write_bytes(content)


def _output(argv: Sequence[str], folder: Path) -> str:
    """Both streams of a command; what there is when its time runs out."""
    log = folder / ".output"
    with log.open("wb") as file:
        process = spawn(argv, cwd=folder, env=clean_env(), stdout=file, stderr=subprocess.STDOUT)
        try:
            process.wait(_LIMIT_S)
        finally:
            process.kill_group()
    return log.read_text(encoding="utf-8", errors="replace")
