"""Finds compilers, the CUDA toolkit, PyTorch's headers and the vendor libraries, without importing torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VENDOR_HEADERS = ("cublas_v2.h", "cublasLt.h", "cudnn.h")
_VENDOR_LIBRARIES = ("cublas", "cublasLt", "cudnn")


@dataclass(frozen=True)
class TorchInstall:
    """An installed PyTorch.

    Attributes:
        root: the package's folder.
        version: as in ``torch.__version__``.
        cuda: CUDA version it was built for, ``None`` for a CPU build.
        cxx_standard: C++ standard its headers need, ``c++20`` (2.13) or ``c++17``.
    """

    root: Path
    version: str
    cuda: str | None
    cxx_standard: str

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        """Where ``<torch/types.h>``, ``<ATen/...>`` and ``<pybind11/...>`` are found."""
        include = self.root / "include"
        return (include, include / "torch" / "csrc" / "api" / "include")


@dataclass(frozen=True)
class CudaToolkit:
    """A CUDA compiler and the folder tree it belongs to."""

    nvcc: Path
    root: Path
    version: str


@functools.cache
def find_torch() -> TorchInstall | None:
    """The PyTorch of this interpreter, or ``None``."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    text = _read(root / "version.py")
    version = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    cuda = re.search(r"^cuda\b[^=]*= ['\"]([^'\"]+)", text, re.MULTILINE)
    # torch's own extension builder names the standard that its headers need.
    standard = re.search(r"-std=(c\+\+\d+)", _read(root / "utils" / "cpp_extension.py"))
    return TorchInstall(
        root=root,
        version=version[1] if version else "unknown",
        cuda=cuda[1] if cuda else None,
        cxx_standard=standard[1] if standard else "c++17",
    )


def python_include() -> Path:
    """Folder of ``Python.h``."""
    return Path(sysconfig.get_path("include"))


@functools.cache
def find_cxx() -> Path | None:
    """A C++ compiler: ``$CXX``, then ``g++``, ``c++``, ``clang++`` on the path."""
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return Path(found)
    return None


@functools.cache
def compiler_version(compiler: Path) -> str:
    """All that ``--version`` says, on one line; empty when it cannot run."""
    try:
        done = subprocess.run(
            [str(compiler), "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split())


@functools.cache
def find_cuda() -> CudaToolkit | None:
    """The CUDA compiler: ``$CUDA_HOME``, ``$CUDA_PATH``, the path, /usr/local/cuda, then pip's wheels."""
    for nvcc in _nvcc_candidates():
        if not os.access(nvcc, os.X_OK):
            continue
        version = re.search(r"release (\d+\.\d+)", compiler_version(nvcc))
        if version:
            return CudaToolkit(nvcc, _toolkit_root(nvcc), version[1])
    return None


def wheel_dirs(name: str) -> list[Path]:
    """``site-packages/nvidia/*/NAME`` folders (``include``, ``lib``, ``bin``) of this interpreter."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return [p for root in roots for p in sorted(Path(root).glob(f"*/{name}")) if p.is_dir()]


def cuda_include_dirs(toolkit: CudaToolkit) -> list[Path]:
    """The toolkit's headers, then those wheels that hold vendor headers the toolkit lacks."""
    dirs = [toolkit.root / "include"]
    for header in _VENDOR_HEADERS:
        if not any((d / header).is_file() for d in dirs):
            dirs += [d for d in wheel_dirs("include") if (d / header).is_file()][:1]
    return dirs


def cuda_libraries(toolkit: CudaToolkit) -> dict[str, Path]:
    """cudart, cublas, cublasLt and cudnn by name, where present.

    PyTorch's wheels come first: that copy is the one loaded in the process.
    """
    folders = [*wheel_dirs("lib"), toolkit.root / "lib64", toolkit.root / "lib"]
    found = {}
    for name in ("cudart", *_VENDOR_LIBRARIES):
        for folder in folders:
            matches = sorted(folder.glob(f"lib{name}.so*"), key=lambda p: len(p.name))
            if matches:
                found[name] = matches[0]
                break
    return found


def missing_vendor_headers(toolkit: CudaToolkit) -> list[str]:
    """Vendor headers found neither in the toolkit nor in a wheel."""
    dirs = cuda_include_dirs(toolkit)
    return [h for h in _VENDOR_HEADERS if not any((d / h).is_file() for d in dirs)]


def _nvcc_candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    yield Path("/usr/local/cuda/bin/nvcc")
    for folder in wheel_dirs("bin"):
        yield folder / "nvcc"


def _toolkit_root(nvcc: Path) -> Path:
    """Folder above ``bin``; asks nvcc itself where its path is a wrapper script's."""
    root = nvcc.resolve().parent.parent
    if (root / "include" / "cuda_runtime.h").is_file():
        return root
    dry = subprocess.run(
        [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    top = re.search(r"^#\$ TOP=(.+)$", dry.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else root


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def python_tag() -> str:
    """Interpreter and platform that an extension module is built for."""
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
