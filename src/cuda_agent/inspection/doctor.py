"""What this machine has and lacks, with remedies. Runs nothing heavy and writes nothing but a test file."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.backends import cpu, toolchain
from cuda_agent.backends.cuda import ARCH_VARIABLE, NVCC_MISSING, list_gpus
from cuda_agent.config import cache_dir
from cuda_agent.sandbox.isolation import Isolation, isolation

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_FREE_BYTES = 2 << 30
_LEAST_PYTHON = (3, 11)
_LEAST_TORCH = (2, 11)
# A log or a pipe has no width of its own: wide enough that no path is cut.
_FILE_WIDTH = 180


class Status(StrEnum):
    """How a check came out: ``WARN`` limits what can be done, ``FAIL`` prevents it."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        status: how it came out.
        found: what is there.
        remedy: what to do, empty when nothing needs to be done.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """All checks, for people and for machines."""

    checks: tuple[Check, ...]

    def text(self) -> str:
        """A table."""
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console.width = _FILE_WIDTH
        with console.capture() as capture:
            console.print(render(list(self.checks)))
        return capture.get().rstrip()

    def to_json(self) -> str:
        """One JSON object: ``healthy``, and ``checks`` with name, status, found and remedy."""
        checks = [dataclasses.asdict(check) for check in self.checks]
        return json.dumps({"healthy": healthy(list(self.checks)), "checks": checks}, indent=1)


def examine() -> Report:
    """:func:`diagnose`, as a report."""
    return Report(tuple(diagnose()))


def diagnose() -> list[Check]:
    """Look at everything the commands may need; failures come with a remedy."""
    looks: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _compiler,
        _headers,
        _gpu,
        _nvcc,
        _vendor_headers,
        _ninja,
        _ripgrep,
        _openai,
        _transformers,
        _isolation,
        _cores,
        _cache,
    )
    return [look() for look in looks]


def healthy(checks: list[Check]) -> bool:
    """Whether the main job can run here on some device."""
    return all(check.status is not Status.FAIL for check in checks)


def render(checks: list[Check]) -> Table:
    """The checks as a table for people."""
    from rich.table import Table
    from rich.text import Text

    colours = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
    table = Table("check", "", "found", "remedy")
    for check in checks:
        status = Text(str(check.status), style=colours[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.remedy))
    return table


def _python() -> Check:
    found = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Check("Python", Status.FAIL, found, "Use Python 3.11 or newer.")
    return Check("Python", Status.OK, found)


def _torch() -> Check:
    torch = toolchain.find_torch()
    if torch is None:
        return Check("PyTorch", Status.FAIL, "not installed", cpu.TORCH_MISSING.remedy)
    found = f"{torch.version}, " + (f"CUDA {torch.cuda}" if torch.cuda else "CPU build")
    if tuple(int(part) for part in torch.version.split(".")[:2]) < _LEAST_TORCH:
        return Check("PyTorch", Status.WARN, found, "2.11 or newer is tested.")
    if list_gpus() and torch.cuda is None:
        return Check("PyTorch", Status.WARN, found, "Install a CUDA build to use the GPU.")
    return Check("PyTorch", Status.OK, found)


def _compiler() -> Check:
    cxx = toolchain.find_cxx()
    if cxx is None:
        return Check("C++ compiler", Status.FAIL, "none", cpu.CXX_MISSING.remedy)
    version = toolchain.compiler_version(cxx).split(" Copyright")[0]
    if not version:
        return Check("C++ compiler", Status.FAIL, f"{cxx} does not run", cpu.CXX_MISSING.remedy)
    if error := _openmp_error(cxx):
        return Check("C++ compiler", Status.FAIL, f"{version}; {error}", cpu.CXX_MISSING.remedy)
    return Check("C++ compiler", Status.OK, version)


def _openmp_error(cxx: Path) -> str:
    """Why a small OpenMP program does not compile; empty when it does."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
        argv = [str(cxx), "-march=native", "-fopenmp", "-std=c++17", str(source), "-o", f"{folder}/probe"]
        return "" if _succeeds(argv) else "cannot build an OpenMP program"


def _headers() -> Check:
    if (toolchain.python_include() / "Python.h").is_file():
        return Check("Python headers", Status.OK, str(toolchain.python_include()))
    return Check("Python headers", Status.FAIL, "no Python.h", cpu.HEADERS_MISSING.remedy)


def _gpu() -> Check:
    gpus = list_gpus()
    if not gpus:
        return Check("GPU", Status.WARN, "none answers", "Device cpu will be used.")
    names = ", ".join(f"{g['name']} (compute {g['compute_cap']})" for g in gpus)
    return Check("GPU", Status.OK, f"{names}; driver {gpus[0]['driver_version']}")


def _nvcc() -> Check:
    cuda = toolchain.find_cuda()
    if cuda is None:
        status = Status.FAIL if list_gpus() else Status.WARN
        return Check("nvcc", status, "none", NVCC_MISSING.remedy)
    found = f"{cuda.version} ({cuda.root})"
    if not list_gpus() and not os.environ.get(ARCH_VARIABLE):
        return Check("nvcc", Status.OK, found, f"Set {ARCH_VARIABLE}=sm_90 to compile without a GPU.")
    return Check("nvcc", Status.OK, found)


def _vendor_headers() -> Check:
    cuda = toolchain.find_cuda()
    if cuda is None:
        return Check("cuBLAS, cuDNN", Status.WARN, "no CUDA toolkit", "Needed on a GPU machine only.")
    missing = toolchain.missing_vendor_headers(cuda)
    libraries = [name for name in ("cublas", "cublasLt", "cudnn") if name in toolchain.cuda_libraries(cuda)]
    if missing:
        remedy = "Install the full CUDA toolkit and cuDNN, or pip's nvidia-cublas and nvidia-cudnn wheels."
        return Check("cuBLAS, cuDNN", Status.WARN, f"no {', '.join(missing)}", remedy)
    if len(libraries) < 3:
        remedy = "Install a CUDA build of PyTorch, which brings them."
        return Check("cuBLAS, cuDNN", Status.WARN, f"only {', '.join(libraries) or 'headers'}", remedy)
    return Check("cuBLAS, cuDNN", Status.OK, "headers and libraries")


def _ninja() -> Check:
    if found := shutil.which("ninja"):
        return Check("ninja", Status.OK, found)
    remedy = "Not needed by us; the public scripts need it: apt-get install -y ninja-build"
    return Check("ninja", Status.WARN, "none", remedy)


def _ripgrep() -> Check:
    if found := shutil.which("rg"):
        return Check("ripgrep", Status.OK, found)
    remedy = "Optional, speeds the Grep tool up: apt-get install -y ripgrep"
    return Check("ripgrep", Status.WARN, "none; Grep falls back on Python", remedy)


def _openai() -> Check:
    return _package("openai", "policy chat", "pip install 'cuda-agent[chat]'")


def _transformers() -> Check:
    return _package("transformers", "policy local", "pip install 'cuda-agent[local]'")


def _package(name: str, what_for: str, install: str) -> Check:
    if importlib.util.find_spec(name) is None:
        return Check(name, Status.WARN, "not installed", f"Needed by {what_for} only: {install}")
    return Check(name, Status.OK, importlib.metadata.version(name))


_KEPT_APART = {
    Isolation.ROOT: "namespaces and a user of its own for each process",
    Isolation.USER: "namespaces, by a user namespace; limits on memory for each process only",
    Isolation.NONE: "limits only: candidates can read this user's files and reach its processes",
}


def _isolation() -> Check:
    """How well a candidate's process can be kept apart from this machine."""
    found = isolation()
    if found is not Isolation.NONE:
        return Check("isolation", Status.OK, _KEPT_APART[found])
    remedy = (
        "Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces; in a "
        "container also mount and pivot_root), or judge untrusted candidates on a machine of their own."
    )
    return Check("isolation", Status.WARN, _KEPT_APART[found], remedy)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    found = f"{cores} usable, load {os.getloadavg()[0]:.1f}"
    if cores < 2:
        return Check("processor", Status.WARN, found, "Times are steadier with 2 cores or more.")
    if os.getloadavg()[0] > cores:
        return Check("processor", Status.WARN, found, "Others use this machine: times will scatter.")
    return Check("processor", Status.OK, found)


def _cache() -> Check:
    folder = cache_dir()
    remedy = "Set CUDA_AGENT_CACHE to a folder that you can write."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("cache", Status.FAIL, f"{folder}: {error.strerror}", remedy)
    found = f"{folder}, {free / 2**30:.0f} GiB free"
    if free < _LEAST_FREE_BYTES:
        return Check("cache", Status.WARN, found, "Free some disk space, or set CUDA_AGENT_CACHE.")
    return Check("cache", Status.OK, found)


def _succeeds(argv: list[str]) -> bool:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
