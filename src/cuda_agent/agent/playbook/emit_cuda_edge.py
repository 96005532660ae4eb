"""CUDA kernels for widths that are no multiple of a vector: whole vectors all the same.

A row of such a width starts between two 16-byte boundaries. Its vectors start at the boundary below it;
lanes outside the row are masked and never touched, so only the first and the last vector of a row move
element by element. Pointwise kernels need no rows: their vectors run across the ends of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cuda_agent.agent.playbook.affine import Affine, contiguous_strides
from cuda_agent.agent.playbook.emit_cuda import C_TYPES, CudaEmitter, Launch
from cuda_agent.agent.playbook.emit_cuda_reduce import CudaReductionEmitter, cuda_emitter
from cuda_agent.agent.playbook.expr import affine_text, needed_for
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store


def cuda_source(kernel: Kernel, name: str) -> tuple[str, list[Launch]]:
    """Source of a kernel and its launcher, and the launches by config; the last takes any pointer."""
    plain, edge = cuda_emitter(kernel), edge_emitter(kernel)
    launches = plain.launches()
    text = ""
    if edge is not None and (more := edge.launches()):
        text = edge.kernel_text(f"{name}_edge")
        launches = [*(replace(launch, edge=True) for launch in more[:-1][:4]), *launches[:2], launches[-1]]
    return text + plain.kernel_text(name) + plain.launcher(name, launches), launches


def edge_emitter(kernel: Kernel) -> CudaEmitter | None:
    """The emitter for a width that is no multiple of the vector; ``None`` where it has no use."""
    if kernel.mode is Mode.COLUMN or (kernel.mode is Mode.ROW and len(kernel.reduced) > 1):
        return None
    row = kernel.mode is Mode.ROW
    emitter: EdgeRowEmitter | FlatEmitter = EdgeRowEmitter(kernel) if row else FlatEmitter(kernel)
    odd = kernel.lane % emitter.full_width() and kernel.lane >= 4 * emitter.full_width()
    vectors = any(n.op == "load" and n.level is Level.FULL and emitter.walks_lanes(n) for n in kernel.nodes)
    return emitter if odd and vectors and emitter.fits() else None


class _Edges(CudaEmitter):
    """Vectors that may lie partly outside: ``whole`` and ``limit`` say so in the code around them."""

    def _vector_width(self) -> int:
        return self.full_width()

    def load_vector(self, index: int, target: str) -> None:
        """See :class:`CudaEmitter`."""
        node = self.k.nodes[index]
        kind = f"PbVec<{C_TYPES[node.dtype]}, V>"
        if target.startswith("const "):
            target = target.rsplit(" ", 1)[1]
            self.put(f"{kind} {target};")
        place = f"{self.buffers[node.buffer]} + {affine_text(node.form, self.vector_counters())}"
        self.put(f"if (whole) {target} = *reinterpret_cast<const {kind}*>({place});")
        self.put(f"else pb_load_edge({target}, {place}, {self.edge_position}, {self.edge_limit});")

    def store_vectors(self, stores: Sequence[Store]) -> None:
        """See :class:`CudaEmitter`."""
        for n, store in enumerate(stores):
            kind = f"PbVec<{C_TYPES[store.dtype]}, V>"
            place = f"{self.buffers[store.buffer]} + {affine_text(store.form, self.vector_counters())}"
            self.put(f"if (whole) *reinterpret_cast<{kind}*>({place}) = y{n};")
            self.put(f"else pb_store_edge(y{n}, {place}, {self.edge_position}, {self.edge_limit});")

    edge_position = "c0"

    @property
    def edge_limit(self) -> str:
        """Elements from where the position counts to where the tensor's row ends."""
        return f"({self.index_type}){self.k.lane}"


class EdgeRowEmitter(_Edges, CudaReductionEmitter):
    """Writes a kernel that reduces rows of any width; see the module."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.span = self.total + self.vector - 1
        self.start = self._row_form()

    def _row_form(self) -> Affine | None:
        """The operand whose rows decide where vectors begin: what is written, else what is read."""
        forms = [s.form for s in self.full_stores()]
        forms += [n.form for n in self.k.nodes if n.op == "load" and n.level is Level.FULL]
        return next((f for f in forms if f.coefs[-1] == 1 and any(f.coefs[:-1])), None)

    def _aligned(self, form: Affine) -> bool:
        """Whether the rows of an operand begin as far from a boundary as those of ``start``."""
        if self.start is None or form.coefs[-1] != 1:
            return False
        steps = [a - b for a, b in zip(form.coefs, self.start.coefs, strict=True)]
        return not any(n % self.vector for n in [*steps, form.const - self.start.const])

    def fits(self) -> bool:
        """Whether everything written begins alike."""
        return all(self._aligned(s.form) for s in self.full_stores())

    def walks_lanes(self, node: Node) -> bool:
        """See :class:`CudaEmitter`."""
        return self._aligned(node.form)

    def row_constants(self) -> None:
        """See :class:`CudaReductionEmitter`."""
        self.put("// Vectors begin at the boundary below the row; lanes outside the row are masked.")
        self.put(f"constexpr int ITEMS = ({self.total} + V - 1 + T * V - 1) / (T * V);")

    def row_start(self) -> None:
        """See :class:`CudaReductionEmitter`."""
        assert self.start is not None
        names = [*self.counters()[:-1], "0"]
        start = affine_text(Affine((*self.start.coefs[:-1], 0), self.start.const), names)
        self.put(f"const {self.index_type} shift = ({start}) % V;")

    @contextmanager
    def items(self) -> Iterator[None]:
        """See :class:`CudaReductionEmitter`; only the first and the last two vectors can be partial."""
        kind, lane = self.index_type, self.k.lane
        self.unroll_items()
        with self.block("for (int it = 0; it < ITEMS; ++it)"):
            self.put(f"const {kind} c0 = (({kind})it * T + threadIdx.x) * V - shift;")
            self.put("[[maybe_unused]] const bool inner = it > 0 && it < ITEMS - 2;")
            with self.block(f"if (inner || c0 < {lane})"):
                self.put("[[maybe_unused]] const bool whole = "
                         f"inner || (c0 >= 0 && c0 + V <= {lane});")  # fmt: skip
                yield

    def load_kept(self) -> None:
        """See :class:`CudaReductionEmitter`: whole vectors are all in flight before an edge is looked at."""
        for wanted in ("whole", "!whole"):
            with self.items():
                for index in sorted(self.kept_loads):
                    self._load_part(index, wanted)

    def _load_part(self, index: int, wanted: str) -> None:
        node = self.k.nodes[index]
        kind = f"PbVec<{C_TYPES[node.dtype]}, V>"
        place = f"{self.buffers[node.buffer]} + {affine_text(node.form, self.vector_counters())}"
        if wanted == "whole":
            self.put(f"if (whole) x{index}[it] = *reinterpret_cast<const {kind}*>({place});")
        else:
            self.put(f"if (!whole) pb_load_edge(x{index}[it], {place}, c0, {self.edge_limit});")

    def lane_counter(self) -> None:
        """See :class:`CudaReductionEmitter`; a lane outside the row stands on element 0, masked."""
        kind, lane = self.index_type, self.k.lane
        self.put(f"[[maybe_unused]] const bool in = inner || (c0 + j >= 0 && c0 + j < {lane});")
        self.put(f"[[maybe_unused]] const {kind} c = in ? c0 + j : 0;")

    def combined(self, accumulator: str, op: str, value: str) -> str:
        """See :class:`CudaReductionEmitter`."""
        return f"in ? {op}{{}}({accumulator}, {value}) : {accumulator}"


class FlatEmitter(_Edges):
    """Writes a pointwise kernel whose vectors take neighbours in memory, across the ends of rows."""

    edge_position = "e0"

    @property
    def edge_limit(self) -> str:
        """See :class:`_Edges`."""
        return f"({self.index_type}){self.k.numel}"

    def fits(self) -> bool:
        """Whether everything is written in row-major order."""
        return all(self._linear(s.form) for s in self.k.stores)

    def _linear(self, form: Affine) -> bool:
        extents = (*self.k.outer, self.k.lane)
        steps = tuple(0 if n == 1 else s for n, s in zip(extents, contiguous_strides(extents), strict=True))
        return form.coefs == steps and form.const % self.vector == 0

    def walks_lanes(self, node: Node) -> bool:
        """See :class:`CudaEmitter`."""
        return self._linear(node.form)

    def body(self) -> None:
        """See :class:`CudaEmitter`."""
        k, kind = self.k, self.index_type
        self.put("// A thread moves U vectors of V neighbours in memory, whichever rows they belong to.")
        self.put(f"const {kind} first = ({kind})blockIdx.x * (T * U) + threadIdx.x;")
        self.put(f"constexpr {kind} groups = ({k.numel} + V - 1) / V;")
        needed = needed_for(k, [s.node for s in k.stores])
        hoisted = [i for i in needed if k.nodes[i].op == "load" and k.nodes[i].level is Level.FULL
                   and self.walks_lanes(k.nodes[i])]  # fmt: skip
        for index in hoisted:
            self.put(f"PbVec<{C_TYPES[k.nodes[index].dtype]}, V> x{index}[U];")
        self.put("#pragma unroll")
        with self.block("for (int u = 0; u < U; ++u)"), self._vector():
            for index in hoisted:
                self.load_vector(index, f"x{index}[u]")
        self.put("#pragma unroll")
        with self.block("for (int u = 0; u < U; ++u)"), self._vector():
            self.vectors = {index: f"x{index}[u].v[j]" for index in hoisted}
            self.declare_outputs(k.stores)
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self._element_counters()
                self.compute(needed)
                self.assign_outputs(k.stores)
            self.store_vectors(k.stores)

    def vector_counters(self) -> list[str]:
        """Everything moved in vectors is row-major: its place is the position of the vector."""
        return [*["0"] * len(self.k.outer), "e0"]

    def _element_counters(self) -> None:
        kind, lane = self.index_type, self.k.lane
        self.put(f"const {kind} e = whole || e0 + j < {self.k.numel} ? e0 + j : 0;")
        self.put(f"[[maybe_unused]] const {kind} row = e / {lane}, c = e % {lane};")
        self.digits("row", self.k.outer, self.counters()[: len(self.k.outer)])

    @contextmanager
    def _vector(self) -> Iterator[None]:
        kind, numel = self.index_type, self.k.numel
        self.put(f"const {kind} group = first + u * T;")
        with self.block("if (group < groups)"):
            self.put(f"const {kind} e0 = group * V;")
            self.put(f"[[maybe_unused]] const bool whole = {numel} % V == 0 || e0 + V <= {numel};")
            yield
