"""The baselines of a task by name, and which are measured together. Standard library only."""

from __future__ import annotations

from enum import StrEnum


class Line(StrEnum):
    """A way to run a reference without a kernel of one's own."""

    EAGER = "eager"
    COMPILE = "compile"
    """torch.compile, default mode, static shapes."""
    CUDA_GRAPH = "cuda_graph"
    """Eager's kernels replayed from a CUDA graph, one graph for each set of inputs: no copies."""
    MAX_AUTOTUNE = "max_autotune"
    """torch.compile, mode max-autotune (with CUDA graphs, whose copies of the inputs count)."""
    COMPILE_TF32 = "compile_tf32"
    """torch.compile with TF32 allowed in matrix products and convolutions."""
    COMPILE_FP16 = "compile_fp16_autocast"
    """torch.compile under float16 autocast, outputs cast back."""
    COMPILE_BF16 = "compile_bf16_autocast"
    """The same with bfloat16: on a CPU, which has no fast float16."""
    HALF = "half_compile"
    """The whole model in float16 under torch.compile, inputs and outputs cast."""
    BF16_MODEL = "bf16_compile"
    """The same with bfloat16: where float16 does not run on a CPU."""
    EAGER_KERNEL = "eager_kernel"
    """Eager by the paper's own metric: summed kernel time of a call, 5 + 10 calls (CUDA)."""
    COMPILE_KERNEL = "compile_kernel"
    """The same of torch.compile."""


class Pass(StrEnum):
    """What is measured in one go."""

    FIRST = "first"
    """Eager, torch.compile, CUDA graph, the roofline floor."""
    SECOND = "second"
    """max-autotune, the settings, summed kernel times."""
    ALL = "all"


SETTINGS = (Line.COMPILE_TF32, Line.COMPILE_FP16, Line.COMPILE_BF16, Line.HALF, Line.BF16_MODEL)
"""Lines that need to be valid at atol = rtol = 1e-2 to count."""

KERNEL_SUMS = (Line.EAGER_KERNEL, Line.COMPILE_KERNEL)
"""Lines whose samples are sums of kernel times."""


def groups_of(which: Pass, kind: str) -> tuple[tuple[Line, ...], ...]:
    """Lines to measure, those of one process together.

    Args:
        which: pass.
        kind: ``cpu`` or ``cuda``.
    """
    graph = (Line.CUDA_GRAPH,) if kind == "cuda" else ()
    first = ((Line.EAGER, Line.COMPILE, *graph),)
    settings: tuple[Line, ...] = (Line.COMPILE_BF16, Line.HALF)
    if kind == "cuda":
        settings = (Line.COMPILE_TF32, Line.COMPILE_FP16, Line.HALF)
    sums = (KERNEL_SUMS,) if kind == "cuda" else ()
    second = (*((line,) for line in (Line.MAX_AUTOTUNE, *settings)), *sums)
    return {Pass.FIRST: first, Pass.SECOND: second, Pass.ALL: (*first, *second)}[which]
