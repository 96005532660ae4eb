"""CUDA for the cuda backend: one pass over memory, vector loads, rows resident in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from cuda_agent.agent.playbook.emit_base import Emitter
from cuda_agent.agent.playbook.expr import CHEAP, FUNCTIONS, affine_text, identity, needed_for
from cuda_agent.agent.playbook.ir import CType
from cuda_agent.agent.playbook.ir import CType
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store
from cuda_agent.agent.playbook.plan import ITEMSIZE, GemmStep

C_TYPES = {
    "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
CUBLAS_TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
RESIDENT = 32
"""Most elements of one value that a thread holds in registers between passes."""


@dataclass(frozen=True)
class Launch:
    """One instantiation: V elements a vector; T threads along the lanes, R beside them; U by hand unrolled.

    Pointwise: blocks of T threads, U vectors a thread. Row: T threads a row, R rows a block. Column:
    T lanes of V columns, R threads share a column.
    """

    v: int
    t: int
    r: int
    u: int = 1

    def __str__(self) -> str:
        return f"<{self.v}, {self.t}, {self.r}, {self.u}>"


class CudaEmitter(Emitter):
    """Writes one kernel, and its launcher ``NAME(pointers..., int64_t config, stream)``."""

    c_types = C_TYPES

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.index_type = "int" if _largest(kernel) < 2**31 - 2**16 else "int64_t"
        self.total = prod(kernel.reduced)
        self.vector = self._vector_width()
        self.vectors: dict[int, str] = {}
        self.kept_loads: set[int] = set()
        self.kept_values: set[int] = set()
        self.made: set[int] = set()
        self.resident = True

    # Vectors

    def _vector_width(self) -> int:
        """Elements a vector: 16 bytes of the widest type, dividing the lane extent."""
        widths = [ITEMSIZE[n.dtype] for n in self.k.nodes if n.op == "load" and n.level is not Level.OUTER]
        widths += [ITEMSIZE[s.dtype] for s in self.k.stores]
        width = max(2, 16 // max(widths, default=4))
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
        if self.k.mode is Mode.POINTWISE:
            shapes = [(256, 1), (256, 2), (256, 4), (128, 2), (512, 1)]
            found = [Launch(v, t, 1, u) for t, u in shapes]
        else:
            self._plan_passes()
            limit = RESIDENT // max(1, -(-self.num_kept // 2))
            rows = self.k.mode is Mode.ROW
            found = _row_launches(self.total, v, limit) if rows else self._column_launches(limit)
            self.resident = bool(found)
            if not found:
                self.kept_loads, self.kept_values = set(), set()
                wide = self.k.lane // v < 32
                streaming = [(1024, 1), (512, 1), (256, 1)] if rows else [(32, 32), (32, 8)]
                streaming = [(16, 64), (8, 128)] if not rows and wide else streaming
                found = [Launch(v, t, r) for t, r in streaming]
        return [*found[:5], Launch(1, found[0].t, found[0].r)]

    def _column_launches(self, limit: int) -> list[Launch]:
        """R threads share a column of ``total`` elements; enough of them to hold it in registers."""
        found = []
        lanes = -(-self.k.lane // self.vector)
        for t in (32, 64, 16, 8):
            if t > 8 and t > 2 * lanes:
                continue
            for r in (1, 2, 4, 8, 16, 32):
                items = -(-self.total // r)
                if items * self.vector <= limit and t * r <= 1024 and t * r >= 64 and r <= self.total:
                    found.append(Launch(self.vector, t, r))
                    break
        return found

    # Functions

    def function(self, name: str, launches: Sequence[Launch]) -> str:
        """Kernel and launcher; ``launches`` by config, the last also for unaligned pointers (V = 1)."""
        writer = {Mode.POINTWISE: self._pointwise, Mode.ROW: self._row, Mode.COLUMN: self._column}
        writer[self.k.mode]()
        bounds = "T" if self.k.mode is Mode.POINTWISE else "T * R"
        params = ", ".join(self.parameters())
        return (
            f"template <int V, int T, int R, int U>\n"
            f"__global__ void __launch_bounds__({bounds}) {name}_kernel({params}) {{\n"
            + "\n".join(self.lines)
            + f"\n}}\n\n{self._launcher(name, params, launches)}"
        )

    def _launcher(self, name: str, params: str, launches: Sequence[Launch]) -> str:
        aligned = " && ".join(f"pb_aligned({b})" for b in self.buffers.values())
        arguments = ", ".join(self.buffers.values())
        cases = []
        for n, launch in enumerate(launches):
            label = f"case {n}" if n + 1 < len(launches) else "default"
            grid, threads = self._grid(launch)
            call = f"{name}_kernel{launch}<<<{grid}, {threads}, 0, stream>>>({arguments})"
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
            groups = k.numel // launch.v
            return f"dim3({max(1, -(-groups // (launch.t * launch.u)))})", f"dim3({launch.t})"
        if k.mode is Mode.ROW:
            return f"dim3({-(-k.rows // launch.r)})", f"dim3({launch.t}, {launch.r})"
        tiles = -(-k.lane // (launch.t * launch.v))
        return f"dim3({tiles * k.rows})", f"dim3({launch.t}, {launch.r})"

    # Pointwise

    def _pointwise(self) -> None:
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

    # Passes over the reduced dimensions, in both reducing modes

    def _plan_passes(self) -> None:
        """Choose what stays in registers between passes."""
        if self.kept_loads or self.kept_values or not self.resident:
            return
        k = self.k
        passes = [needed_for(k, [k.nodes[r].args[0] for r in self.stage_reductions(s)])
                  for s in range(1, k.stages + 1)]  # fmt: skip
        passes.append(needed_for(k, [s.node for s in self.full_stores()]))
        for index, node in enumerate(k.nodes):
            if node.level is not Level.FULL or sum(index in p for p in passes) < 2:
                continue
            if node.op == "load" and self.walks_lanes(node):
                self.kept_loads.add(index)
            elif node.op == "load" or node.op in FUNCTIONS - CHEAP:
                self.kept_values.add(index)

    @property
    def num_kept(self) -> int:
        """Values held in registers between passes."""
        return len(self.kept_loads) + len(self.kept_values)

    def _declare_kept(self) -> None:
        for index in sorted(self.kept_loads):
            self.put(f"PbVec<{C_TYPES[self.k.nodes[index].dtype]}, V> x{index}[ITEMS];")
            self.vectors[index] = f"x{index}[it].v[j]"
        for index in sorted(self.kept_values):
            self.put(f"{self.k.nodes[index].ctype.value} s{index}[ITEMS][V];")
        if self.kept_loads:
            with self._items():
                for index in sorted(self.kept_loads):
                    self.load_vector(index, f"x{index}[it]")

    @contextmanager
    def _items(self) -> Iterator[None]:
        """A loop over this thread's vectors; c0 and the reduced counters are set inside."""
        kind = self.index_type
        self.put("#pragma unroll" if self.resident else "#pragma unroll 4")
        with self.block("for (int it = 0; it < ITEMS; ++it)"):
            if self.k.mode is Mode.ROW:
                self.put(f"const {kind} e = (({kind})it * T + threadIdx.x) * V;")
            else:
                self.put(f"const {kind} e = ({kind})it * R + threadIdx.y;")
            with self.block(f"if (EXACT || e < {self.total})"):
                names = self.counters()[len(self.k.outer) :]
                if self.k.mode is Mode.ROW:
                    self.digits("e", self.k.reduced, [*names[:-1], "c0"])
                else:
                    self.digits("e", self.k.reduced, names[:-1])
                yield

    def _pass(self, targets: Sequence[int], stores: Sequence[Store], body: Callable[[], None]) -> None:
        k = self.k
        stop = set(self.made)
        needed = _until(k, targets, stop)
        with self._items():
            self.declare_vectors([i for i in needed if i not in stop])
            self.declare_outputs(stores)
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self.put(f"[[maybe_unused]] const {self.index_type} c = c0 + j;")
                for index in needed:
                    if index in stop:
                        self.names[index] = f"s{index}[it][j]"
                    elif k.nodes[index].level is Level.FULL:
                        self.compute([index])
                        if index in self.kept_values:
                            self.put(f"s{index}[it][j] = v{index};")
                            self.made.add(index)
                body()
            self.store_vectors(stores)

    def _accumulate(self, reductions: Sequence[int]) -> Callable[[], None]:
        def body() -> None:
            for r in reductions:
                node = self.k.nodes[r]
                value = self.ref(node.args[0])
                self.put(f"a{r}[j] = {_OPS[node.kind]}{{}}(a{r}[j], {value});")

        return body

    def _accumulators(self, reductions: Sequence[int]) -> None:
        for r in reductions:
            node = self.k.nodes[r]
            start = identity(node.kind, node.ctype)
            self.put(f"{node.ctype.value} a{r}[V];")
            self.put("#pragma unroll")
            self.put(f"for (int j = 0; j < V; ++j) a{r}[j] = {start};")

    def _outer(self, stage: int) -> None:
        for index, node in enumerate(self.k.nodes):
            if node.level is Level.OUTER and node.stage <= stage:
                self.compute([index])

    # Rows

    def _row(self) -> None:
        k, kind = self.k, self.index_type
        self._plan_passes()
        self.put("// T threads share a row and hold it in registers." if self.resident else
                 "// T threads share a row and read it again in each pass.")  # fmt: skip
        self.put(f"constexpr int ITEMS = ({self.total} + T * V - 1) / (T * V);")
        self.put(f"constexpr bool EXACT = {self.total} % (T * V) == 0;")
        self.put("__shared__ alignas(16) char shared[T > 32 ? R * T / 4 : 16];")
        self.put(f"const {kind} wanted = ({kind})blockIdx.x * R + threadIdx.y;")
        self.put(f"const bool live = wanted < {k.rows};")
        self.put(f"const {kind} row = live ? wanted : {k.rows} - 1;")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        self._declare_kept()
        for stage in range(1, k.stages + 1):
            self._outer(stage - 1)
            reductions = self.stage_reductions(stage)
            self._accumulators(reductions)
            self._pass([k.nodes[r].args[0] for r in reductions], [], self._accumulate(reductions))
            for r in reductions:
                self._finish_row(r)
        self._outer(k.stages)
        self.put("if (!live) return;")
        if full := self.full_stores():
            self._pass([s.node for s in full], full, lambda: self.assign_outputs(full))
        if rows := self.row_stores():
            with self.block("if (threadIdx.x == 0)"):
                for store in rows:
                    self.store(store)

    def _finish_row(self, r: int) -> None:
        node = self.k.nodes[r]
        op = _OPS[node.kind]
        self.put("#pragma unroll")
        self.put(f"for (int j = 1; j < V; ++j) a{r}[0] = {op}{{}}(a{r}[0], a{r}[j]);")
        self.put(f"const {node.ctype.value} v{r} = pb_reduce<T>(a{r}[0], {op}{{}}, shared);")
        self.names[r] = f"v{r}"

    # Columns

    def _column(self) -> None:
        k, kind = self.k, self.index_type
        self._plan_passes()
        self.put("// T lanes of V neighbouring columns; R threads share a column.")
        self.put(f"constexpr int ITEMS = ({self.total} + R - 1) / R;")
        self.put(f"constexpr bool EXACT = {self.total} % R == 0;")
        self.put(f"constexpr {kind} tiles = ({k.lane} + T * V - 1) / (T * V);")
        self.put(f"__shared__ alignas(16) char shared[R > 1 ? R * T * V * {self._slot()} : 16];")
        self.put(f"const {kind} row = blockIdx.x / tiles;")
        self.put(f"const {kind} start = ((blockIdx.x % tiles) * T + threadIdx.x) * V;")
        self.put(f"const bool live = start < {k.lane};")
        self.put(f"const {kind} c0 = live ? start : 0;")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        self._declare_kept()
        for stage in range(1, k.stages + 1):
            self._lane_values(stage - 1)
            reductions = self.stage_reductions(stage)
            self._accumulators(reductions)
            self._pass([k.nodes[r].args[0] for r in reductions], [], self._accumulate(reductions))
            for r in reductions:
                self._finish_column(r)
        self._lane_values(k.stages)
        self.put("if (!live) return;")
        if full := self.full_stores():
            self._pass([s.node for s in full], full, lambda: self.assign_outputs(full))
        if rows := self.row_stores():
            self._store_lanes(rows)

    def _slot(self) -> int:
        """Bytes of one partial result in shared memory."""
        return 4 if all(n.ctype is CType.F for n in self.k.nodes if n.op == "reduce") else 8

    def _lane_values(self, stage: int) -> None:
        self._outer(stage)
        wanted = [i for i, n in enumerate(self.k.nodes)
                  if n.level is Level.LANE and n.op != "reduce" and n.stage <= stage
                  and i not in self.names]  # fmt: skip
        if not wanted:
            return
        for index in wanted:
            self.put(f"{self.k.nodes[index].ctype.value} w{index}[V];")
        self.declare_vectors(wanted)
        self.put("#pragma unroll")
        with self.block("for (int j = 0; j < V; ++j)"):
            self.put(f"[[maybe_unused]] const {self.index_type} c = c0 + j;")
            self.compute(wanted)
            for index in wanted:
                self.put(f"w{index}[j] = v{index};")
        self.names.update({index: f"w{index}[j]" for index in wanted})

    def _finish_column(self, r: int) -> None:
        """Join the R partial results of each column through shared memory."""
        node = self.k.nodes[r]
        ctype, op = node.ctype.value, _OPS[node.kind]
        with self.block("if constexpr (R > 1)"):
            self.put(f"{ctype}* slots = reinterpret_cast<{ctype}*>(shared);")
            self.put("__syncthreads();")
            place = "(threadIdx.y * T + threadIdx.x) * V + j"
            self.put(f"for (int j = 0; j < V; ++j) slots[{place}] = a{r}[j];")
            self.put("__syncthreads();")
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self.put(f"a{r}[j] = slots[threadIdx.x * V + j];")
                self.put(f"for (int k = 1; k < R; ++k) a{r}[j] = {op}{{}}(a{r}[j], "
                         "slots[(k * T + threadIdx.x) * V + j]);")  # fmt: skip
        self.names[r] = f"a{r}[j]"

    def _store_lanes(self, stores: Sequence[Store]) -> None:
        with self.block("if (threadIdx.y == 0)"):
            self.declare_outputs(stores)
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self.put(f"[[maybe_unused]] const {self.index_type} c = c0 + j;")
                self.assign_outputs(stores)
            self.store_vectors(stores)


def _row_launches(total: int, v: int, limit: int) -> list[Launch]:
    """Threads a row so that a thread holds few elements; about 8 keep two vector loads in flight."""
    scored = []
    for t in (8, 16, 32, 64, 128, 256, 512, 1024):
        held = -(-total // (t * v)) * v
        wasted = t > 8 and held == v and total * 2 <= t * v
        if held > limit or wasted:
            continue
        scored.append((abs(held - 8) if held >= 8 else 2 * (8 - held), t))
    return [Launch(v, t, max(1, 128 // t)) for _, t in sorted(scored)]


_OPS = {"sum": "PbSum", "prod": "PbProd", "max": "PbMax", "min": "PbMin"}


def _until(kernel: Kernel, targets: Sequence[int], stop: set[int]) -> list[int]:
    """Nodes that the targets need, not entering those already held."""
    seen: set[int] = set()
    stack = list(targets)
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            if index not in stop and kernel.nodes[index].op != "reduce":
                stack.extend(kernel.nodes[index].args)
    return sorted(seen)


def _largest(kernel: Kernel) -> int:
    """Largest offset or count that an index of the kernel reaches."""
    extents = [*kernel.outer, *kernel.reduced, *([] if kernel.mode is Mode.ROW else [kernel.lane])]
    reach = [kernel.numel]
    for form in [n.form for n in kernel.nodes if n.op == "load"] + [s.form for s in kernel.stores]:
        reach.append(form.const + sum(abs(c) * n for c, n in zip(form.coefs, extents, strict=True)))
    return max(reach)


def gemm_function(step: GemmStep, name: str) -> str:
    """A matrix product as a launcher that returns an error text or null."""
    from cuda_agent.agent.playbook.emit_cpu import layout

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


