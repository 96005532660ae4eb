"""The cpu backend: C++ kernels with OpenMP and SIMD, compiled by the system's C++ compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.backends import facts, toolchain
from cuda_agent.backends.base import CompileStep, DeviceFacts, Missing
from cuda_agent.config import Track
from cuda_agent.errors import ToolchainError

CXX_MISSING = Missing("no C++ compiler (g++)", "Install one: apt-get install -y g++")
TORCH_MISSING = Missing("PyTorch is not installed for this Python", "Install it: pip install torch")
HEADERS_MISSING = Missing(
    "Python.h, the interpreter's C headers, are missing", "Install them: apt-get install -y python3-dev"
)


def host_missing() -> list[Missing]:
    """What a C++ extension needs on any backend and this machine lacks."""
    missing = []
    if toolchain.find_cxx() is None:
        missing.append(CXX_MISSING)
    if toolchain.find_torch() is None:
        missing.append(TORCH_MISSING)
    if not (toolchain.python_include() / "Python.h").is_file():
        missing.append(HEADERS_MISSING)
    return missing


def host_include_argv() -> list[str]:
    """Include options: the working directory for quoted includes, PyTorch and Python as system headers."""
    torch = require_torch()
    argv = ["-iquote", "."]
    for folder in (*torch.include_dirs, toolchain.python_include()):
        argv += ["-isystem", str(folder)]
    return argv


def require_torch() -> toolchain.TorchInstall:
    """The installed PyTorch.

    Raises:
        ToolchainError: there is none.
    """
    torch = toolchain.find_torch()
    if torch is None:
        raise ToolchainError(TORCH_MISSING.what, TORCH_MISSING.remedy)
    return torch


def require_cxx() -> Path:
    """The C++ compiler.

    Raises:
        ToolchainError: there is none.
    """
    cxx = toolchain.find_cxx()
    if cxx is None:
        raise ToolchainError(CXX_MISSING.what, CXX_MISSING.remedy)
    return cxx


def relative_source(source: Path, root: Path) -> str:
    """Path of a source as the compiler, run in ``root``, is to name it."""
    return str(source.relative_to(root)) if source.is_relative_to(root) else str(source)


def host_link_argv(objects: Sequence[Path], output: Path, libraries: Sequence[str]) -> tuple[str, ...]:
    """Link an extension module against PyTorch and ``libraries``; unused ones leave no trace in it."""
    lib = require_torch().root / "lib"
    torch_libraries = [
        f"-l{name}"
        for name in ("c10", "torch_cpu", "torch_python", "c10_cuda", "torch_cuda")
        if (lib / f"lib{name}.so").is_file()
    ]
    return (
        str(require_cxx()),
        "-shared",
        *map(str, objects),
        "-o",
        str(output),
        "-Wl,--as-needed",
        f"-L{lib}",
        *torch_libraries,
        *libraries,
        f"-Wl,-rpath,{lib}",
    )


class CpuBackend:
    """Compiles ``kernels/*.cpp`` with -O3 -march=native -fopenmp."""

    name = "cpu"
    kernel_suffix = ".cpp"

    def missing(self) -> list[Missing]:
        """See :class:`cuda_agent.backends.base.Backend`."""
        return host_missing()

    def facts(self) -> DeviceFacts:
        """See :class:`cuda_agent.backends.base.Backend`."""
        return facts.cpu_facts(require_cxx())

    def fingerprint(self) -> str:
        """See :class:`cuda_agent.backends.base.Backend`; -march=native makes the CPU part of it."""
        parts = (
            toolchain.compiler_version(require_cxx()),
            require_torch().version,
            toolchain.python_tag(),
            facts.cpu_identity(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def compile_step(self, source: Path, output: Path, *, root: Path, track: Track) -> CompileStep:
        """See :class:`cuda_agent.backends.base.Backend`; both tracks have the same flags here."""
        del track
        argv = (
            str(require_cxx()),
            "-O3",
            "-march=native",
            "-fopenmp",
            *host_flags(),
            "-c",
            relative_source(source, root),
            "-o",
            str(output),
        )
        return CompileStep(source, output, argv)

    def link_argv(self, objects: Sequence[Path], output: Path) -> tuple[str, ...]:
        """See :class:`cuda_agent.backends.base.Backend`.

        PyTorch's own OpenMP runtime is linked, not the compiler's: two in one process would each
        start a pool of threads.
        """
        root = require_torch().root
        bundled = [
            p for d in (root / "lib", root.parent / "torch.libs") for p in sorted(d.glob("libgomp*.so*"))
        ]
        return host_link_argv(objects, output, [str(bundled[0]) if bundled else "-lgomp"])


def host_flags() -> list[str]:
    """Flags of every C++ source, whatever the backend."""
    return [
        f"-std={require_torch().cxx_standard}",
        "-fPIC",
        "-w",
        "-fmax-errors=20",
        "-fdiagnostics-color=never",
        "-DTORCH_EXTENSION_NAME=cuda_extension",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        *host_include_argv(),
    ]
