"""The cuda backend: nvcc for ``.cu``, the host compiler for ``.cpp``, one GPU architecture.

A machine with no GPU can compile when ``CUDA_AGENT_ARCH`` names the architecture (``sm_90``), with a CPU
build of PyTorch too.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.backends import cpu, facts, toolchain
from cuda_agent.backends.base import CompileStep, DeviceFacts, Missing
from cuda_agent.config import Track
from cuda_agent.errors import ToolchainError

ARCH_VARIABLE = "CUDA_AGENT_ARCH"
NVCC_MISSING = Missing(
    "no CUDA compiler (nvcc)",
    "Install the CUDA toolkit (apt-get install -y nvidia-cuda-toolkit, or NVIDIA's cuda-toolkit package) "
    "or set CUDA_HOME.",
)
GPU_MISSING = Missing(
    "no NVIDIA GPU answers here",
    f"Use --device cpu; to compile only, set {ARCH_VARIABLE} (for example sm_90).",
)
_SMI_FOLDERS = "/usr/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/lib/wsl/lib"
_QUERY = ("index", "uuid", "name", "compute_cap", "driver_version")
# As torch.utils.cpp_extension defines them: what builds here also builds under the public scripts.
_HALF_DEFINES = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)


@functools.cache
def list_gpus() -> tuple[dict[str, str], ...]:
    """What nvidia-smi says of each visible GPU, in the order that CUDA_VISIBLE_DEVICES gives."""
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=_SMI_FOLDERS)
    if program is None:
        return ()
    argv = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode != 0:
        return ()
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    gpus = [dict(zip(_QUERY, row, strict=False)) for row in rows if len(row) == len(_QUERY)]
    return tuple(_visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")))


def _visible(gpus: list[dict[str, str]], setting: str | None) -> list[dict[str, str]]:
    """CUDA's rule: the list ends at the first entry that names no GPU."""
    if setting is None:
        return gpus
    chosen = []
    for entry in (part.strip() for part in setting.split(",")):
        match = [g for g in gpus if g["index"] == entry or (entry and g["uuid"].startswith(entry))]
        if not match:
            break
        chosen.append(match[0])
    return chosen


def parse_arch(text: str) -> str:
    """``sm_90`` from ``sm_90``, ``90``, ``9.0`` or ``compute_90``; a suffix ``a`` or ``f`` is kept.

    Raises:
        ToolchainError: not an architecture.
    """
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})\.?(\d)([af]?)", text.strip())
    if match is None:
        raise ToolchainError(f"{ARCH_VARIABLE} is {text!r}", "Write it as sm_90.")
    return f"sm_{match[1]}{match[2]}{match[3]}"


class CudaBackend:
    """Compiles ``kernels/*.cu`` for the GPU's own architecture; ``gpu`` is its index as CUDA counts."""

    name = "cuda"
    kernel_suffix = ".cu"

    def __init__(self, gpu: int = 0) -> None:
        self.gpu = gpu

    def missing(self) -> list[Missing]:
        """See :class:`cuda_agent.backends.base.Backend`."""
        missing = cpu.host_missing()
        if toolchain.find_cuda() is None:
            missing.append(NVCC_MISSING)
        if not list_gpus():
            missing.append(GPU_MISSING)
        torch = toolchain.find_torch()
        if torch is not None and torch.cuda is None:
            missing.append(
                Missing(
                    f"PyTorch {torch.version} is a CPU build",
                    "Install a CUDA build of PyTorch to run kernels; compiling works without.",
                )
            )
        return missing

    def arch(self) -> str:
        """``sm_90``: read off the device, else from ``CUDA_AGENT_ARCH``.

        Raises:
            ToolchainError: no such GPU and no such variable.
        """
        gpus = list_gpus()
        if gpus and self.gpu < len(gpus):
            return parse_arch(gpus[self.gpu]["compute_cap"])
        if named := os.environ.get(ARCH_VARIABLE):
            return parse_arch(named)
        if gpus:
            raise ToolchainError(f"no GPU {self.gpu}: {len(gpus)} visible", "Choose a lower index.")
        raise ToolchainError(GPU_MISSING.what, GPU_MISSING.remedy)

    def facts(self) -> DeviceFacts:
        """See :class:`cuda_agent.backends.base.Backend`."""
        gpus = list_gpus()
        if self.gpu >= len(gpus):
            raise ToolchainError(GPU_MISSING.what, GPU_MISSING.remedy)
        return facts.cuda_facts(require_cuda(), self.gpu, gpus[self.gpu])

    def fingerprint(self) -> str:
        """See :class:`cuda_agent.backends.base.Backend`."""
        parts = (
            toolchain.compiler_version(cpu.require_cxx()),
            toolchain.compiler_version(require_cuda().nvcc),
            cpu.require_torch().version,
            toolchain.python_tag(),
            self.arch(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def compile_step(self, source: Path, output: Path, *, root: Path, track: Track) -> CompileStep:
        """See :class:`cuda_agent.backends.base.Backend`; track ``paper`` adds --use_fast_math to nvcc."""
        name = cpu.relative_source(source, root)
        if source.suffix == ".cu":
            argv = [str(require_cuda().nvcc), "-O3"]
            argv += ["--use_fast_math"] if track is Track.PAPER else []
            argv += self._device_flags()
        else:
            argv = [str(cpu.require_cxx()), "-O3", *cpu.host_flags(), *_cuda_options()]
        return CompileStep(source, output, (*argv, "-c", name, "-o", str(output)))

    def _device_flags(self) -> list[str]:
        virtual = self._target().replace("sm_", "compute_")
        standard = cpu.require_torch().cxx_standard
        flags = ["-gencode", f"arch={virtual},code={self._target()}", f"-std={standard}"]
        flags += [*_HALF_DEFINES, "--expt-relaxed-constexpr", "-w", "-Xcompiler", "-fPIC"]
        flags += ["-DTORCH_EXTENSION_NAME=cuda_extension", "-DTORCH_API_INCLUDE_EXTENSION_H"]
        flags += _cuda_options()
        torch = cpu.require_torch()
        for folder in (*torch.include_dirs, toolchain.python_include()):
            flags += ["-isystem", str(folder)]
        # nvcc has no -iquote of its own; the preprocessor it calls has.
        return [*flags, "-Xcompiler", "-iquote,."]

    def _target(self) -> str:
        """The device's architecture with its own features (``sm_90a``: wgmma, bulk tensor copies)."""
        arch = self.arch()
        suffixed = re.fullmatch(r"sm_(\d+)", arch)
        has_own = suffixed is not None and int(suffixed[1]) >= 90
        # sm_90a came with CUDA 12.0, one release after sm_90; later ones came together.
        return f"{arch}a" if has_own and int(require_cuda().version.split(".")[0]) >= 12 else arch

    def link_argv(self, objects: Sequence[Path], output: Path) -> tuple[str, ...]:
        """See :class:`cuda_agent.backends.base.Backend`: cudart, cuBLAS(Lt) and cuDNN where present."""
        found = toolchain.cuda_libraries(require_cuda())
        folders = sorted({str(path.parent) for path in found.values()})
        rpaths = [f"-Wl,-rpath,{folder}" for folder in folders]
        return cpu.host_link_argv(objects, output, [*map(str, found.values()), *rpaths])


def require_cuda() -> toolchain.CudaToolkit:
    """The CUDA compiler.

    Raises:
        ToolchainError: there is none.
    """
    toolkit = toolchain.find_cuda()
    if toolkit is None:
        raise ToolchainError(NVCC_MISSING.what, NVCC_MISSING.remedy)
    return toolkit


def _cuda_options() -> list[str]:
    """Toolkit headers; the define spares CPU builds of PyTorch a header that they do not ship."""
    options = []
    for folder in toolchain.cuda_include_dirs(require_cuda()):
        options += ["-isystem", str(folder)]
    generated = cpu.require_torch().root / "include" / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    return options if generated.is_file() else [*options, "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]
