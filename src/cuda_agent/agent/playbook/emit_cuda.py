"""CUDA for the cuda backend: one pass over memory, vector loads, rows resident in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from cuda_agent.agent.playbook.emit_base import Emitter
from cuda_agent.agent.playbook.emit_cpu_gemm import layout
from cuda_agent.agent.playbook.expr import affine_text, needed_for
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store
from cuda_agent.agent.playbook.plan import ITEMSIZE, GemmStep

C_TYPES = {
    "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
CUBLAS_TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}


@dataclass(frozen=True)
class Launch:
    """One instantiation: V elements a vector; T threads along the lanes, R beside them.

    Pointwise: blocks of T threads, U vectors a thread. Row: T threads a row, R rows a block, registers for
    U blocks a multiprocessor. Column: T lanes of V columns, R threads share a column.

    Attributes:
        edge: of the kernel whose vectors do not begin where rows begin (see emit_cuda_edge).
    """

    v: int
    t: int
    r: int
    u: int = 1
    edge: bool = False

    def __str__(self) -> str:
        return f"<{self.v}, {self.t}, {self.r}, {self.u}>"

    @property
    def words(self) -> str:
        """For a legend."""
        return f"{self}{' across row starts' if self.edge else ''}"


class CudaEmitter(Emitter):
    """Writes one kernel without reductions, and its launcher ``NAME(pointers..., config, stream)``."""

    c_types = C_TYPES

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.index_type = "int" if _largest(kernel) < 2**31 - 2**16 else "int64_t"
        self.total = prod(kernel.reduced)
        self.vector = self._vector_width()
        self.vectors: dict[int, str] = {}

    # Vectors

    def full_width(self) -> int:
        """Elements of the widest type in 16 bytes."""
        widths = [ITEMSIZE[n.dtype] for n in self.k.nodes if n.op == "load" and n.level is not Level.OUTER]
        widths += [ITEMSIZE[s.dtype] for s in self.k.stores]
        return max(2, 16 // max(widths, default=4))

    def _vector_width(self) -> int:
        """Elements a vector: as many as divide the lane extent."""
        width = self.full_width()
        while self.k.lane % width:
            width //= 2
        return width

    def walks_lanes(self, node: Node) -> bool:
        """Whether a load reads neighbouring elements that start at a multiple of the vector."""
        *others, lane = node.form.coefs
        return lane == 1 and not any(c % self.vector for c in others) and node.form.const % self.vector == 0

    def expression(self, node: Node) -> str:
        for index, vector in self.vectors.items():
            if self.k.nodes[index] is node:
                if node.dtype in ("float16", "bfloat16"):
                    return f"pb_from_{node.dtype}({vector})"
                return f"({vector} != 0)" if node.dtype == "bool" else vector
        return super().expression(node)

    def load_vector(self, index: int, target: str) -> None:
        """``target`` = the vector of a load at counter c (the vector's first lane)."""
        node = self.k.nodes[index]
        kind = f"PbVec<{C_TYPES[node.dtype]}, V>"
        place = f"{self.buffers[node.buffer]} + {affine_text(node.form, self.vector_counters())}"
        self.put(f"{target} = *reinterpret_cast<const {kind}*>({place});")

    def vector_counters(self) -> list[str]:
        return [*self.counters()[:-1], "c0"]

    def digits(self, source: str, extents: Sequence[int], names: Sequence[str]) -> None:
        mark = len(self.lines)
        super().digits(source, extents, names)
        self.lines[mark:] = [x.replace("int64_t", self.index_type, 1) for x in self.lines[mark:]]

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        """A braced block; names made inside do not outlive it."""
        names, vectors = dict(self.names), dict(self.vectors)
        self.open(line)
        yield
        self.close()
        self.names, self.vectors = names, vectors

    def declare_vectors(self, indices: Sequence[int]) -> None:
        """Load the vectors of the element (or lane) loads among the nodes, where not held already."""
        for index in indices:
            node = self.k.nodes[index]
            if node.op != "load" or node.level is Level.OUTER or index in self.vectors:
                continue
            if self.walks_lanes(node):
                self.load_vector(index, f"const PbVec<{C_TYPES[node.dtype]}, V> x{index}")
                self.vectors[index] = f"x{index}.v[j]"

    def store_vectors(self, stores: Sequence[Store]) -> None:
        """Write the vectors y of the stores at counter c0."""
        for n, store in enumerate(stores):
            kind = f"PbVec<{C_TYPES[store.dtype]}, V>"
            place = f"{self.buffers[store.buffer]} + {affine_text(store.form, self.vector_counters())}"
            self.put(f"*reinterpret_cast<{kind}*>({place}) = y{n};")

    def declare_outputs(self, stores: Sequence[Store]) -> None:
        for n, store in enumerate(stores):
            self.put(f"PbVec<{C_TYPES[store.dtype]}, V> y{n};")

    def assign_outputs(self, stores: Sequence[Store]) -> None:
        """y[j] = value, for each store."""
        for n, store in enumerate(stores):
            mark = len(self.lines)
            self.store(store)
            value = self.lines[mark].split(" = ", 1)[1]
            self.lines[mark:] = ["  " * self.depth + f"y{n}.v[j] = {value}"]

    # Launches

    def launches(self) -> list[Launch]:
        """Instantiations by config, most promising first; the last takes unaligned pointers."""
        v = self.vector
        shapes = [(256, 1), (256, 2), (256, 4), (128, 2), (512, 1)]
        return [*(Launch(v, t, 1, u) for t, u in shapes), Launch(1, 256, 1)]

    # Functions

    def kernel_text(self, name: str) -> str:
        """The kernel template, once :meth:`launches` has chosen what it is made for."""
        self.body()
        bounds = {Mode.POINTWISE: "T", Mode.ROW: "T * R, U", Mode.COLUMN: "T * R"}[self.k.mode]
        params = ", ".join(self.parameters())
        return (
            f"template <int V, int T, int R, int U>\n"
            f"__global__ void __launch_bounds__({bounds}) {name}_kernel({params}) {{\n"
            + "\n".join(self.lines)
            + "\n}\n\n"
        )

    def launcher(self, name: str, launches: Sequence[Launch]) -> str:
        """The launcher; ``launches`` by config, the last also for unaligned pointers (V = 1)."""
        params = ", ".join(self.parameters())
        aligned = " && ".join(f"pb_aligned({b})" for b in self.buffers.values())
        arguments = ", ".join(self.buffers.values())
        cases = []
        for n, launch in enumerate(launches):
            label = f"case {n}" if n + 1 < len(launches) else "default"
            grid, threads = self._grid(launch)
            kernel = f"{name}{'_edge' if launch.edge else ''}_kernel{launch}"
            call = f"{kernel}<<<{grid}, {threads}, 0, stream>>>({arguments})"
            cases.append(f"    {label}: {call}; break;")
        body = "\n".join(cases) if self.k.numel else "    default: return nullptr;"
        return (
            f"static const char* {name}({params}, int64_t config, cudaStream_t stream) {{\n"
            f"  switch ({aligned} ? config : -1) {{\n{body}\n  }}\n"
            f"  const cudaError_t error = cudaGetLastError();\n"
            f"  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);\n}}\n"
        )

    def _grid(self, launch: Launch) -> tuple[str, str]:
        k = self.k
        if k.mode is Mode.POINTWISE:
            groups = -(-k.numel // launch.v)
            return f"dim3({max(1, -(-groups // (launch.t * launch.u)))})", f"dim3({launch.t})"
        if k.mode is Mode.ROW:
            return f"dim3({-(-k.rows // launch.r)})", f"dim3({launch.t}, {launch.r})"
        tiles = -(-k.lane // (launch.t * launch.v))
        return f"dim3({tiles * k.rows})", f"dim3({launch.t}, {launch.r})"

    # Pointwise

    def body(self) -> None:
        """Write the kernel's body."""
        k, kind = self.k, self.index_type
        self.put("// A thread moves U vectors of V elements; all loads are issued before the arithmetic.")
        self.put(f"const {kind} first = ({kind})blockIdx.x * (T * U) + threadIdx.x;")
        self.put(f"constexpr {kind} groups = {k.numel} / V, width = {k.lane} / V;")
        needed = needed_for(k, [s.node for s in k.stores])
        hoisted = [i for i in needed if k.nodes[i].op == "load" and k.nodes[i].level is Level.FULL
                   and self.walks_lanes(k.nodes[i])]  # fmt: skip
        for index in hoisted:
            self.put(f"PbVec<{C_TYPES[k.nodes[index].dtype]}, V> x{index}[U];")
        self.put("#pragma unroll")
        with self.block("for (int u = 0; u < U; ++u)"), self._group():
            for index in hoisted:
                self.load_vector(index, f"x{index}[u]")
        self.put("#pragma unroll")
        with self.block("for (int u = 0; u < U; ++u)"), self._group():
            self.vectors = {index: f"x{index}[u].v[j]" for index in hoisted}
            self.compute(self.at(Level.OUTER, needed))
            self.declare_outputs(k.stores)
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self.put(f"const {kind} c = c0 + j;")
                self.compute(self.at(Level.FULL, needed))
                self.assign_outputs(k.stores)
            self.store_vectors(k.stores)

    @contextmanager
    def _group(self) -> Iterator[None]:
        kind = self.index_type
        self.put(f"const {kind} group = first + u * T;")
        with self.block("if (group < groups)"):
            self.put(f"const {kind} row = group / width, c0 = group % width * V;")
            self.digits("row", self.k.outer, self.counters()[: len(self.k.outer)])
            yield


def _largest(kernel: Kernel) -> int:
    """Largest offset or count that an index of the kernel reaches."""
    extents = [*kernel.outer, *kernel.reduced, *([] if kernel.mode is Mode.ROW else [kernel.lane])]
    reach = [kernel.numel]
    for form in [n.form for n in kernel.nodes if n.op == "load"] + [s.form for s in kernel.stores]:
        reach.append(form.const + sum(abs(c) * n for c, n in zip(form.coefs, extents, strict=True)))
    return max(reach)


def gemm_function(step: GemmStep, name: str) -> str:
    """A matrix product as a launcher that returns an error text or null."""
    a, b = step.a, step.b
    ta, lda = layout(a.strides[1:], (step.m, step.k))
    tb, ldb = layout(b.strides[1:], (step.k, step.n))
    kind, ctype = CUBLAS_TYPES[step.dtype], C_TYPES[step.dtype]
    return (
        f"static const char* {name}(const {ctype}* a, const {ctype}* b, {ctype}* c, int64_t config, "
        f"cudaStream_t stream) {{\n"
        f"  return pb_gemm(a + {a.offset}, {str(ta).lower()}, {lda}, {a.strides[0]}, b + {b.offset}, "
        f"{str(tb).lower()}, {ldb}, {b.strides[0]}, c, {step.batch}, {step.m}, {step.n}, {step.k}, {kind}, "
        f"config, stream);\n}}\n"
    )
