"""Build an extension from a candidate's sources on the machine that runs it, once, with the judge's flags.

For exported packages: one folder of sources in, one cached library out. Needs torch, a C++ compiler and,
for CUDA, nvcc. Processes that build the same thing wait for one another.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils import cpp_extension

LIBRARY = "cuda_extension.so"
_WHEELS = Path(torch.__file__).parents[1] / "nvidia"


class BuildError(RuntimeError):
    """The kernels do not build here; the message has the compiler's words."""


def build_extension(sources: Path, cache: Path, *, cuda: bool, fast_math: bool = False) -> Path:
    """The library built from ``sources`` (binding.cpp and kernels/), from the cache where it is there.

    Args:
        sources: folder with ``binding.cpp``, ``binding_registry.h`` and ``kernels/``.
        cache: folder to keep libraries in.
        cuda: also compile ``kernels/*.cu``, for the current GPU.
        fast_math: pass ``--use_fast_math`` to nvcc.

    Raises:
        BuildError: a compiler is missing, or it fails.
    """
    commands = _commands(sources, cuda=cuda, fast_math=fast_math)
    folder = cache / _key(sources, commands, cuda=cuda)
    library = folder / LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not library.is_file():
            objects = [folder / f"{index}.o" for index in range(len(commands))]
            steps = [[*argv, "-o", str(o)] for argv, o in zip(commands, objects, strict=True)]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda argv: _run(argv, sources), steps))
            part = folder / f"part-{os.getpid()}.so"
            _run([*_link(objects, cuda=cuda), "-o", str(part)], sources)
            part.replace(library)
    return library


def _commands(sources: Path, *, cuda: bool, fast_math: bool) -> list[list[str]]:
    """One compiler call for each source, without its output."""
    host = [_compiler(), "-O3", *_common(cuda=cuda), "-fPIC", "-iquote", "."]
    host += [] if cuda else ["-march=native", "-fopenmp"]
    kernels = sorted((sources / "kernels").glob("*.c*"))
    names = ["binding.cpp", *(f"kernels/{p.name}" for p in kernels if p.suffix in (".cpp", ".cu"))]
    device = _device_compiler(fast_math=fast_math) if cuda else []
    return [[*(device if name.endswith(".cu") else host), "-c", name] for name in names]


def _common(*, cuda: bool) -> list[str]:
    flags = [f"-std={_standard()}", "-w", "-DTORCH_EXTENSION_NAME=cuda_extension"]
    flags += ["-DTORCH_API_INCLUDE_EXTENSION_H"]
    folders = [*cpp_extension.include_paths("cuda" if cuda else "cpu"), sysconfig.get_path("include")]
    # Wheels hold vendor headers that a toolkit may lack; behind the toolkit's own.
    folders += map(str, sorted(_WHEELS.glob("*/include"))) if cuda else []
    for folder in folders:
        flags += ["-isystem", folder]
    return flags


def _device_compiler(*, fast_math: bool) -> list[str]:
    home = cpp_extension.CUDA_HOME
    nvcc = shutil.which("nvcc") or (str(Path(home) / "bin" / "nvcc") if home else None)
    if nvcc is None or not Path(nvcc).is_file():
        raise BuildError("nvcc is missing: install the CUDA toolkit, or set CUDA_HOME")
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}" + ("a" if major >= 9 else "")
    flags = [nvcc, "-O3", *(["--use_fast_math"] if fast_math else []), *_common(cuda=True)]
    flags += ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "--expt-relaxed-constexpr"]
    flags += [f"-D__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")]
    flags += ["-D__CUDA_NO_BFLOAT16_CONVERSIONS__"]
    return [*flags, "-Xcompiler", "-fPIC", "-Xcompiler", "-iquote,."]


def _link(objects: Sequence[Path], *, cuda: bool) -> list[str]:
    lib = Path(torch.__file__).parent / "lib"
    names = ["c10", "torch_cpu", "torch_python", *(["c10_cuda", "torch_cuda"] if cuda else [])]
    argv = [_compiler(), "-shared", *map(str, objects), "-Wl,--as-needed", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    argv += [f"-l{name}" for name in names if (lib / f"lib{name}.so").is_file()]
    if cuda:
        for path in _cuda_libraries():
            argv += [str(path), f"-Wl,-rpath,{path.parent}"]
        return argv
    # PyTorch's own OpenMP runtime: two in one process would each start a pool of threads.
    bundled = sorted(lib.glob("libgomp*.so*"))
    return [*argv, str(bundled[0]) if bundled else "-lgomp"]


def _cuda_libraries() -> list[Path]:
    folders = [*sorted(_WHEELS.glob("*/lib")), *map(Path, cpp_extension.library_paths("cuda"))]
    found = []
    for name in ("cudart", "cublas", "cublasLt", "cudnn"):
        matches = [p for folder in folders for p in sorted(folder.glob(f"lib{name}.so*"))]
        found += matches[:1]
    return found


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("a C++ compiler is missing: install g++")


def _standard() -> str:
    """The C++ standard that this PyTorch's headers need, as its own extension builder says."""
    match = re.search(r"-std=(c\+\+\d+)", Path(cpp_extension.__file__).read_text(encoding="utf-8"))
    return match[1] if match else "c++17"


def _key(sources: Path, commands: Sequence[Sequence[str]], *, cuda: bool) -> str:
    device = torch.cuda.get_device_name() if cuda else _processor()
    digest = hashlib.sha256(f"{torch.__version__} {platform.python_version()} {device}".encode())
    digest.update(repr(commands).encode())
    for path in sorted(sources.rglob("*")):
        if path.is_file() and path.suffix in (".cpp", ".cu", ".h", ".cuh", ".hpp"):
            digest.update(path.relative_to(sources).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(("model name", "flags"))}))


def _run(argv: Sequence[str], folder: Path) -> None:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{argv[0]} failed:\n{(done.stderr or done.stdout).strip()[:4000]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
