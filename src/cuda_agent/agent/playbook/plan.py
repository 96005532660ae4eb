"""Partition of a program into kernels and matrix products, with as few passes over memory as it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from cuda_agent.agent.playbook.affine import Access, Shape, counter
from cuda_agent.agent.playbook.ir import (
    CType,
    Gemm,
    Pointwise,
    Program,
    Reduce,
    Reshape,
    Source,
    Unsupported,
    Value,
    View,
    ctype_of,
    operands,
    topological,
)
from cuda_agent.agent.playbook.kernel import Kernel
from cuda_agent.agent.playbook.kernel_builder import Builder, Materialise, NotAffine, NotFusable

ITEMSIZE = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """A matrix operand in memory: element offset, and strides over (batch, rows, columns)."""

    buffer: str
    dtype: str
    offset: int
    strides: tuple[int, int, int]


@dataclass(frozen=True)
class GemmStep:
    """``out[batch, m, n] = a[batch, m, k] @ b[batch, k, n]``, out row-major."""

    a: Operand
    b: Operand
    out: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def buffers(self) -> list[str]:
        """Buffers read or written."""
        return [self.a.buffer, self.b.buffer, self.out]


Step = Kernel | GemmStep


@dataclass
class Plan:
    """What runs, in order.

    Attributes:
        steps: kernels and matrix products.
        storage: dtype of each buffer by name.
        shapes: shape of each buffer that the plan makes.
        outputs: buffer of each output, in order.
        output_shapes: shape of each output.
    """

    steps: list[Step] = field(default_factory=list)
    storage: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    output_shapes: list[Shape] = field(default_factory=list)

    @property
    def temporaries(self) -> list[str]:
        """Buffers that live only within the call."""
        return [name for name in self.shapes if name not in self.outputs]


def plan(program: Program) -> Plan:
    """Plan a program.

    Raises:
        Unsupported: something cannot be planned; says what.
    """
    return _Planner(program).run()


class _Planner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.outputs = _distinct_outputs(program.outputs)
        self.needed: list[Value] = [v for v, _ in self.outputs.values()]

    def run(self) -> Plan:
        for _ in range(10_000):
            try:
                return self._attempt()
            except Materialise as request:
                if any(request.value is v for v in self.needed):
                    raise Unsupported("an index pattern of the module cannot be expressed") from None
                self.needed.append(request.value)
        raise Unsupported("the module's graph is too entangled to plan")

    def _attempt(self) -> Plan:
        result = Plan(storage={s.name: s.dtype for s in self.program.sources.values()})
        chosen = {id(v) for v in self.needed}
        roots = [v for v in topological(self.needed) if id(v) in chosen or isinstance(v, Gemm)]
        memory: dict[int, str] = {}
        named = {id(v): name for v, name in self.outputs.values()}
        for value in roots:
            name = named.get(id(value), f"t{len(memory)}")
            memory[id(value)] = name
            result.storage[name] = self._storage(value)
            result.shapes[name] = value.shape
        producers: dict[str, int] = {}
        for value in roots:
            if isinstance(value, Gemm):
                result.steps.append(self._gemm(value, memory, result.storage))
                producers[memory[id(value)]] = len(result.steps) - 1
            else:
                self._place(value, memory, result, producers)
        for out in self.program.outputs:
            result.outputs.append(self.outputs[id(out)][1])
            result.output_shapes.append(out.shape)
        return result

    def _storage(self, value: Value) -> str:
        ctype_of(value.dtype)
        return value.dtype

    # Kernels

    def _place(self, value: Value, memory: dict[int, str], result: Plan, producers: dict[str, int]) -> None:
        """Put a value into an existing kernel where it fits, else into one of its own."""
        alone = self._build([value], memory, result.storage)
        earliest = max((producers[b] for b in alone.loads if b in producers), default=-1)
        for position in range(len(result.steps) - 1, max(earliest, 0) - 1, -1):
            step = result.steps[position]
            if not isinstance(step, Kernel) or not _related(step, alone):
                continue
            merged = self._merge(step, alone, memory, result.storage)
            if merged is None or any(producers.get(b, -1) >= position for b in merged.loads):
                continue
            result.steps[position] = merged
            producers[memory[id(value)]] = position
            return
        result.steps.append(alone)
        producers[memory[id(value)]] = len(result.steps) - 1

    def _merge(
        self, step: Kernel, alone: Kernel, memory: dict[int, str], storage: dict[str, str]
    ) -> Kernel | None:
        if step.numel != alone.numel:
            return None
        try:
            return self._build([*step.roots, *alone.roots], memory, storage)
        except (Materialise, NotFusable):
            return None

    def _build(self, roots: Sequence[Value], memory: dict[int, str], storage: dict[str, str]) -> Kernel:
        anchor = _anchor(roots, memory)
        if anchor is None:
            space: Shape = roots[0].shape
            reduced: tuple[int, ...] = ()
        else:
            space, reduced = anchor.arg.shape, anchor.dims
            kept = prod(anchor.shape)
            if any(prod(r.shape) not in (prod(space), kept) for r in roots):
                raise Materialise(anchor)
        local = frozenset(id(r) for r in roots)
        return Builder(space, reduced, memory, storage, local).kernel(roots)

    # Matrix products

    def _gemm(self, value: Gemm, memory: dict[int, str], storage: dict[str, str]) -> GemmStep:
        batch, m, n = value.shape
        a = self._operand(value.a, memory, storage)
        b = self._operand(value.b, memory, storage)
        name = memory[id(value)]
        return GemmStep(a, b, name, storage[name], batch, m, n, value.a.shape[2])

    def _operand(self, value: Value, memory: dict[int, str], storage: dict[str, str]) -> Operand:
        forms = [counter(3, k) for k in range(3)]
        access = Access.of_forms(value.shape, forms, 3)
        builder = Builder(value.shape, (), memory, storage, frozenset())
        base = value
        while isinstance(base, View | Reshape) and id(base) not in memory:
            base = base.arg
        if id(base) not in memory and not isinstance(base, Source):
            raise Materialise(base if ctype_of(base.dtype) is CType.F else value)
        try:
            node = builder.nodes[builder.visit(value, access)]
        except NotAffine:
            raise Materialise(value) from None
        sb, sm, sk = node.form.coefs
        if not _library_layout((sm, sk), value.shape[1:]):
            raise Materialise(value)
        return Operand(node.buffer, node.dtype, node.form.const, (sb, sm, sk))


def _library_layout(strides: tuple[int, int], shape: Shape) -> bool:
    """Whether a BLAS takes the matrix as it lies: one stride is 1, the other at least the extent."""
    (rows, columns), (m, k) = strides, shape
    if columns == 1 or k == 1:
        return m == 1 or rows >= max(k, 1)
    return (rows == 1 or m == 1) and columns >= m


def _related(step: Kernel, other: Kernel) -> bool:
    """Whether fusing two kernels saves a read."""
    return bool((step.loads | {s.buffer for s in step.stores}) & other.loads)


def _anchor(roots: Sequence[Value], memory: dict[int, str]) -> Reduce | None:
    """The last reduction that the roots compute themselves; it decides the loop nest."""
    mine = {id(r) for r in roots}
    seen: set[int] = set()
    found: list[Reduce] = []

    def walk(value: Value) -> None:
        if id(value) in seen or (id(value) in memory and id(value) not in mine):
            return
        seen.add(id(value))
        for arg in operands(value):
            walk(arg)
        if isinstance(value, Reduce):
            found.append(value)

    for root in roots:
        walk(root)
    return found[-1] if found else None


def _distinct_outputs(outputs: Sequence[Value]) -> dict[int, tuple[Value, str]]:
    """For each output, the value that is written for it and its buffer; reshapes need no kernel."""
    result: dict[int, tuple[Value, str]] = {}
    taken: dict[int, tuple[Value, str]] = {}
    for out in outputs:
        if id(out) in result:
            continue
        base = out
        while isinstance(base, Reshape):
            base = base.arg
        if id(base) not in taken:
            value = base
            if not isinstance(base, Pointwise | Reduce | View | Gemm):
                value = Pointwise(base.shape, base.dtype, "copy", (base,), ctype_of(base.dtype))
            taken[id(base)] = (value, f"o{len(taken)}")
        result[id(out)] = taken[id(base)]
    return result
