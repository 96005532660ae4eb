"""Whose the kernels are that a call launches: the candidate's own, an allowed library's, or PyTorch's.

Pure. The list of kernels comes from CUPTI in the candidate's process, so it is evidence: a hostile library
can leave kernels out or rename them. What it shows can lower a verdict, never raise one.

Covers: PyTorch's own kernels by their C++ namespaces, whatever launched them: an operator on a thread that
the dispatcher guard does not watch, an operator captured in a CUDA graph, ATen's kernel templates
instantiated in the candidate's library. The candidate's own by name: each ``__global__`` function has a host
function of the same name in the built library, which the judge reads.

Does not cover: which library a kernel of cuBLAS's style of name belongs to (names only), and kernels that
carry a name of the candidate's own and come from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum

ANONYMOUS = "(anonymous namespace)"


class Origin(StrEnum):
    """Where a kernel comes from, as verdicts name it."""

    OWN = "own kernels"
    LIBRARY = "cuBLAS or cuDNN"
    TORCH = "PyTorch"
    COPY = "copies and fills"
    """Memory copies and sets, and the fills of ``torch.zeros``, ``ones`` and ``full``, which are allowed."""
    UNKNOWN = "unknown"


_COPY = re.compile(r"mem(cpy|set)\b", re.IGNORECASE)
_FILL = re.compile(r"\bat::native::FillFunctor\b")
_TORCH_BASE = re.compile(
    r"(at|c10|torch|caffe2|at_cuda_detail|PyTorchMemEffAttention|pytorch_flash)::|fmha_cutlass"
)
_TORCH_INSIDE = re.compile(r"\b(at::native|at::cuda|at_cuda_detail|PyTorchMemEffAttention|pytorch_flash)::")
_LIBRARY = re.compile(
    r"cublas|cudnn|nvjet|xmma|gem[mv]|cutlass_?\d+_|cutlass_\w+_(tensorop|simt|wmma)|cask|splitKreduce|dot_kernel"
    r"|reduce_1Block|scal_kernel|implicit_convolve|winograd|[fdw]prop|[dw]grad|conv(2d|3d|olve)_|fft[12]d_"
    r"|nchwToNhwc|nhwcToNchw|(maxwell|volta|turing|ampere|hopper|sm\d\d+)_"
)
_PART = re.compile(r"L?(\d+)")


def origin_of(kernel: str, own: Collection[str]) -> Origin:
    """Where a kernel comes from.

    Args:
        kernel: its name as CUPTI gives it, demangled or not.
        own: names of the candidate's library (:func:`own_names`).
    """
    if _COPY.match(kernel):
        return Origin.COPY
    base = base_name(kernel)
    if _TORCH_BASE.match(base):
        return Origin.COPY if _FILL.search(kernel) else Origin.TORCH
    if base in own:
        return Origin.OWN
    if _TORCH_INSIDE.search(kernel):
        return Origin.TORCH
    return Origin.LIBRARY if _LIBRARY.search(base) or _LIBRARY.search(kernel) else Origin.UNKNOWN


def shares(by_kernel: Mapping[str, float], origins: Mapping[str, Origin]) -> dict[Origin, float]:
    """Share of GPU time by origin, largest first.

    Args:
        by_kernel: time of each kernel.
        origins: of each kernel; unknown where left out.
    """
    total = sum(by_kernel.values()) or 1.0
    found: dict[Origin, float] = {}
    for kernel, time_us in by_kernel.items():
        origin = origins.get(kernel, Origin.UNKNOWN)
        found[origin] = found.get(origin, 0.0) + time_us / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def torch_kernels(by_kernel: Mapping[str, float], own: Collection[str]) -> list[str]:
    """PyTorch's compute kernels among those listed, by their base names."""
    return sorted({base_name(kernel) for kernel in by_kernel if origin_of(kernel, own) is Origin.TORCH})


def own_names(symbols: Collection[str]) -> frozenset[str]:
    """Base names (:func:`base_name`) of the symbols that a library defines."""
    return frozenset(base_name(symbol) for symbol in symbols)


def base_name(kernel: str) -> str:
    """The qualified name up to template arguments or parameters: ``void a::k<float>(int)`` is ``a::k``."""
    if kernel.startswith("_Z"):
        return "::".join(_mangled_parts(kernel)) or kernel
    text = kernel.removeprefix("void ").replace(ANONYMOUS, "\0")
    return re.split(r"[<(]", text, maxsplit=1)[0].replace("\0", ANONYMOUS).strip()


def _mangled_parts(symbol: str) -> list[str]:
    """Leading identifiers of an Itanium-mangled name, nested or not."""
    start = re.match(r"_Z(N[KVr]*)?", symbol)
    place, parts = start.end() if start else 0, list[str]()
    while number := _PART.match(symbol, place):
        end = number.end() + int(number.group(1))
        name = symbol[number.end() : end]
        parts.append(ANONYMOUS if name.startswith("_GLOBAL__N") else name)
        place = end
        if symbol[2] != "N":
            break  # what follows are parameters
    return parts
