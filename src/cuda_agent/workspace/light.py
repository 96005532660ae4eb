"""The light form's kernels as Python functions: the binding is written from the sources. Pure.

A light candidate has ``extern "C" __global__`` kernels in ``kernels/*.cu`` and no ``*_binding.cpp``. The
binding made here gives each as ``cuda_extension.NAME(grid, block, shared_bytes, stream, *arguments)``: three
integers each for grid and block, the stream as an integer, pointers as addresses. It uses no header of
PyTorch. Not covered: parameters that are structures, references, arrays or macros, and templates (refused by
name); kernels that a macro declares (not found).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from cuda_agent.workspace.snapshot import Snapshot

LIGHT_BINDING = "kernels/light_binding.cpp"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\(([^)]*)\)'
)
_FIXED_WIDTH = {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_SCALARS = (
    {"bool", "char", "int", "unsigned", "float", "double", "long", "size_t"}
    | {"unsigned int", "long long", "unsigned long", "unsigned long long"}
    | _FIXED_WIDTH
)


class LightFormError(ValueError):
    """A kernel of the light form that cannot be bound; the message names file, kernel and parameter."""


@dataclass(frozen=True)
class Kernel:
    """One kernel: its name, and the C++ type by which each parameter is passed (pointers: uintptr_t)."""

    name: str
    parameters: tuple[str, ...]


def is_light(files: Mapping[str, bytes]) -> bool:
    """Whether a candidate's files (by workspace path) are in light form."""
    sources = [name for name in files if PurePosixPath(name).parent == PurePosixPath("kernels")]
    return not any(name.endswith(".cpp") for name in sources) and bool(find_kernels(files))


def public_form(snapshot: Snapshot) -> Snapshot:
    """The candidate with its binding written out, where it is in light form; else as it is.

    Raises:
        LightFormError: a kernel cannot be bound.
    """
    if not is_light(snapshot.files):
        return snapshot
    binding = write_binding(find_kernels(snapshot.files)).encode()
    return Snapshot({**snapshot.files, LIGHT_BINDING: binding})


def find_kernels(files: Mapping[str, bytes]) -> list[Kernel]:
    """The kernels that sources directly in ``kernels/`` declare ``extern "C" __global__``, each once.

    Raises:
        LightFormError: a parameter is neither a pointer nor a plain scalar.
    """
    found = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        if path.parent == PurePosixPath("kernels") and path.suffix == ".cu":
            for kernel in _kernels(name, files[name].decode(errors="replace")):
                found[kernel.name] = kernel
    return list(found.values())


def _kernels(source: str, text: str) -> Iterator[Kernel]:
    for match in _KERNEL.finditer(_COMMENT.sub(" ", text)):
        parts = [part.strip() for part in match[2].split(",")]
        if parts in ([""], ["void"]):
            parts = []
        yield Kernel(match[1], tuple(_passed_as(f"{source}: {match[1]}", part) for part in parts))


def _passed_as(where: str, parameter: str) -> str:
    if "*" in parameter and "[" not in parameter and "&" not in parameter:
        return "uintptr_t"
    words = [word for word in parameter.split() if word != "const"]
    if not all(word.removeprefix("std::").isidentifier() for word in words):
        words = []
    for length in (len(words), len(words) - 1):  # without and with a name
        kind = " ".join(words[:length]).removeprefix("std::")
        if kind in _SCALARS:
            return kind
    raise LightFormError(f"{where}: parameter {parameter!r} is neither a pointer nor a plain scalar")


def write_binding(kernels: list[Kernel]) -> str:
    """A ``*_binding.cpp`` of the public form for these kernels."""
    declared = "".join(f'extern "C" void {kernel.name}();\n' for kernel in kernels)
    defined = "".join(_definition(kernel) for kernel in kernels)
    return f"{_HEAD}{declared}\nstatic void bind_light(pybind11::module& module) {{\n{defined}{_TAIL}"


def _definition(kernel: Kernel) -> str:
    names = [f"a{index}" for index in range(len(kernel.parameters))]
    taken = "".join(f", {kind} {name}" for kind, name in zip(kernel.parameters, names, strict=True))
    pointers = ", ".join(["nullptr", *(f"&{name}" for name in names)])
    return (
        f'    module.def("{kernel.name}", [](Size grid, Size block, size_t shared, '
        f"uintptr_t stream{taken}) {{\n"
        f"        void* arguments[] = {{{pointers}}};\n"
        f"        launch(reinterpret_cast<const void*>(&{kernel.name}), grid, block, shared, stream, "
        "arguments + 1);\n    });\n"
    )


_HEAD = """// Written from the kernels' declarations. A kernel's name is its host handle.
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../binding_registry.h"

using Size = std::array<unsigned, 3>;

static void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

static void launch(const void* kernel, Size grid, Size block, size_t shared, uintptr_t stream,
                   void** arguments) {
    if (shared > 48 * 1024)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared)));
    check(cudaLaunchKernel(kernel, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]),
                           arguments, shared, reinterpret_cast<cudaStream_t>(stream)));
}

"""
_TAIL = """}

REGISTER_BINDING(light, bind_light);
"""
