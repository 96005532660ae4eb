"""What differs between the backends when kernels are emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_agent.agent.playbook import emit_cpu, emit_cpu_gemm, emit_cuda, rewrite
from cuda_agent.agent.playbook.emit_cuda_edge import cuda_source
from cuda_agent.agent.playbook.expr import functions_used
from cuda_agent.agent.playbook.ir import Program
from cuda_agent.agent.playbook.kernel import Kernel, Mode
from cuda_agent.agent.playbook.plan import GemmStep, Step


@dataclass(frozen=True)
class Knob:
    """What can be tuned of one step.

    Attributes:
        what: the step in words.
        legend: what the number means.
        default: where tuning starts.
        choices: values worth trying, most promising first.
    """

    what: str
    legend: str
    default: int
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Emitted:
    """One step as source text.

    Attributes:
        name: of its function.
        text: source.
        sections: template sections it calls.
        knob: what can be tuned.
        scratch: bytes of workspace it needs for itself.
    """

    name: str
    text: str
    sections: frozenset[str]
    knob: Knob
    scratch: int = 0


class KernelBackend(Protocol):
    """Emits steps and says how they are called."""

    suffix: str
    library: str
    binding: str
    holds_constants: bool

    @property
    def c_types(self) -> Mapping[str, str]:
        """C type of each dtype."""
        ...

    def rewrite(self, program: Program) -> Program:
        """The program as this backend wants it before planning."""
        ...

    def emit(self, step: Step, name: str) -> Emitted:
        """Source of one step."""
        ...

    def call(self, name: str, args: Sequence[str], config: str) -> str:
        """Statement that runs a step."""
        ...


def describe(kernel: Kernel) -> str:
    """A kernel in words."""
    reductions = sum(n.op == "reduce" for n in kernel.nodes)
    if kernel.mode is Mode.POINTWISE:
        return f"a pointwise kernel over {kernel.numel} elements"
    where = "rows" if kernel.mode is Mode.ROW else "columns"
    return f"a kernel with {reductions} reduction(s) over {where}"


class CpuKernels:
    """C++ with OpenMP and vector loops."""

    suffix = ".cpp"
    library = "cpu_math.h"
    binding = "binding_cpu.cpp"
    holds_constants = False
    c_types = emit_cpu.C_TYPES

    def rewrite(self, program: Program) -> Program:
        """See :class:`KernelBackend`: products in float32."""
        return rewrite.widened(program)

    def emit(self, step: Step, name: str) -> Emitted:
        """See :class:`KernelBackend`."""
        if isinstance(step, GemmStep):
            # Starting threads of our own only pays for products of a few hundred microseconds.
            large = step.m >= 64 and step.batch * step.m * step.n * step.k >= 1 << 23
            legend = "gemm: 0 library threads, 1 a panel of rows a thread"
            knob = Knob("a matrix product", legend, 0, (0, 1) if large else (0,))
            return Emitted(name, emit_cpu_gemm.gemm_function(step, name), frozenset({"gemm"}), knob)
        emitter = emit_cpu.CpuEmitter(step)
        text = emitter.function(name)
        sections = frozenset({*functions_used([step]), "divisor"})
        return Emitted(name, text, sections, self._knob(step, emitter.serial_below()))

    def call(self, name: str, args: Sequence[str], config: str) -> str:
        """See :class:`KernelBackend`."""
        return f"{name}({', '.join([*args, config])});"

    def _knob(self, kernel: Kernel, serial_below: int) -> Knob:
        serial = (1,) if serial_below <= kernel.numel < 1 << 20 else ()  # fewer never start threads
        if kernel.mode is Mode.POINTWISE:
            legend = "pointwise: bit 0 one thread, above it log2(elements a thread takes / 4096)"
            wide = (2, 4, 8) if kernel.lane > 8192 else ()
            return Knob(describe(kernel), legend, 0, (0, *serial, *wide))
        return Knob(describe(kernel), "rows and columns: bit 0 one thread", 0, (0, *serial))


class CudaKernels:
    """CUDA, matrix products by cuBLAS.

    Args:
        tf32: the task's contract lets float32 products use TF32.
    """

    suffix = ".cu"
    library = "cuda_math.cuh"
    binding = "binding_cuda.cpp"
    holds_constants = True
    c_types = emit_cuda.C_TYPES

    def __init__(self, *, tf32: bool = False) -> None:
        self.tf32 = tf32

    def rewrite(self, program: Program) -> Program:
        """See :class:`KernelBackend`: reductions of few long rows in two steps."""
        return rewrite.split_long_reductions(program)

    def emit(self, step: Step, name: str) -> Emitted:
        """See :class:`KernelBackend`."""
        if isinstance(step, GemmStep):
            choices = (0, 1) if self.tf32 and step.dtype == "float32" else (0,)
            knob = Knob("a matrix product", "gemm: 1 lets float32 use TF32", 0, choices)
            return Emitted(name, emit_cuda.gemm_function(step, name), frozenset({"gemm"}), knob)
        text, launches = cuda_source(step, name)
        sections = frozenset({*functions_used([step]), "reduce", "divisor", "edge"})
        legend = "kernels: " + ", ".join(f"{n} {launch.words}" for n, launch in enumerate(launches[:-1]))
        knob = Knob(describe(step), legend, 0, tuple(range(len(launches) - 1)))
        return Emitted(name, text, sections, knob)

    def call(self, name: str, args: Sequence[str], config: str) -> str:
        """See :class:`KernelBackend`."""
        call = f"{name}({', '.join([*args, config, '(cudaStream_t)stream'])})"
        return f"if (const char* error = {call}) return error;"
