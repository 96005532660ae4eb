"""CUDA kernels with reductions: rows held in registers where they fit, read again where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cuda_agent.agent.playbook.emit_cuda import C_TYPES, CudaEmitter, Launch
from cuda_agent.agent.playbook.expr import CHEAP, FUNCTIONS, identity, needed_for
from cuda_agent.agent.playbook.ir import CType
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Store
from cuda_agent.agent.playbook.plan import ITEMSIZE

RESIDENT = 32
"""Most elements of one value that a thread holds in registers between passes."""
REGISTERS = 65_536
"""Registers of a multiprocessor."""


def cuda_emitter(kernel: Kernel) -> CudaEmitter:
    """The emitter of a kernel."""
    return CudaEmitter(kernel) if kernel.mode is Mode.POINTWISE else CudaReductionEmitter(kernel)


class CudaReductionEmitter(CudaEmitter):
    """Writes one kernel with reductions over rows or columns.

    Attributes:
        kept_loads, kept_values: nodes held in registers between passes.
        resident: a thread's share of a row fits its registers.
        span: elements that the vectors of a row cover, at most.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.kept_loads: set[int] = set()
        self.kept_values: set[int] = set()
        self.made: set[int] = set()
        self.resident = True
        self.span = self.total

    def body(self) -> None:
        """See :class:`CudaEmitter`."""
        if self.k.mode is Mode.ROW:
            self._row()
        else:
            self._column()

    def launches(self) -> list[Launch]:
        """See :class:`CudaEmitter`."""
        v = self.vector
        self._plan_passes()
        limit = max(v, RESIDENT // max(1, -(-self.num_kept // 2)))
        rows = self.k.mode is Mode.ROW
        found = (
            _row_launches(self.span, v, limit, self._words_held()) if rows else self._column_launches(limit)
        )
        self.resident = bool(found)
        if not found:
            self.kept_loads, self.kept_values = set(), set()
            narrow = self.k.lane // v < 32
            useful = [t for t in (1024, 512, 256, 128, 64, 32) if t == 32 or t * v <= 2 * self.span]
            shapes = [(t, 1) for t in useful[:3]] if rows else [(32, 32), (32, 8)]
            shapes = [(16, 64), (8, 128)] if not rows and narrow else shapes
            found = [Launch(v, t, r) for t, r in shapes]
        return [*found[:5], replace(found[0], v=1)]

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

    # Passes over the reduced dimensions, in both reducing modes

    def _plan_passes(self) -> None:
        """Choose what stays in registers between passes."""
        if self.kept_loads or self.kept_values or not self.resident:
            return
        k = self.k
        passes = [needed_for(k, [k.nodes[r].args[0] for r in self.stage_reductions(s)])
                  for s in range(1, k.stages + 1)]  # fmt: skip
        passes.append(needed_for(k, [s.node for s in self.full_stores()]))
        row = k.mode is Mode.ROW
        for index, node in enumerate(k.nodes):
            # In a row's first pass even a load used once is issued with all others before its first use.
            ahead = row and node.op == "load" and index in passes[0] and self.walks_lanes(node)
            if node.level is not Level.FULL or (sum(index in p for p in passes) < 2 and not ahead):
                continue
            if node.op == "load" and self.walks_lanes(node):
                self.kept_loads.add(index)
            elif node.op == "load" or node.op in FUNCTIONS - CHEAP:
                self.kept_values.add(index)

    def _words_held(self) -> float:
        """Registers for each element between passes: what is computed takes the place of a load."""
        loads = sum(ITEMSIZE[self.k.nodes[i].dtype] / 4 for i in self.kept_loads)
        return max(1.0, loads + max(0, len(self.kept_values) - 1))

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
            self.load_kept()

    def load_kept(self) -> None:
        """Issue every held load of this thread's share of the row."""
        with self.items():
            for index in sorted(self.kept_loads):
                self.load_vector(index, f"x{index}[it]")

    def lane_counter(self) -> None:
        """Declare c, the counter of lane j of the vector at c0."""
        self.put(f"[[maybe_unused]] const {self.index_type} c = c0 + j;")

    def combined(self, accumulator: str, op: str, value: str) -> str:
        """An accumulator with one more value in it."""
        return f"{op}{{}}({accumulator}, {value})"

    def row_constants(self) -> None:
        """Declare ITEMS, the vectors of a thread, and EXACT, whether all of them lie in the row."""
        self.put(f"constexpr int ITEMS = ({self.total} + T * V - 1) / (T * V);")
        self.put(f"constexpr bool EXACT = {self.total} % (T * V) == 0;")

    def unroll_items(self) -> None:
        """Registers need constant indices: whole unrolling where a row is held."""
        self.put("#pragma unroll" if self.resident else "#pragma unroll 4")

    @contextmanager
    def items(self) -> Iterator[None]:
        """A loop over this thread's vectors; c0 and the reduced counters are set inside."""
        kind = self.index_type
        self.unroll_items()
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
        self.declare_divisors(needed)
        with self.items():
            self.declare_vectors([i for i in needed if i not in stop])
            self.declare_outputs(stores)
            self.put("#pragma unroll")
            with self.block("for (int j = 0; j < V; ++j)"):
                self.lane_counter()
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
                self.put(f"a{r}[j] = {self.combined(f'a{r}[j]', _OPS[node.kind], value)};")

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
        self.row_constants()
        count = max(1, sum(n.op == "reduce" for n in k.nodes))
        self.put(f"__shared__ alignas(16) char shared[T > 32 ? {count} * (R * T / 4) : 16];")
        self.put(f"const {kind} wanted = ({kind})blockIdx.x * R + threadIdx.y;")
        self.put(f"const bool live = wanted < {k.rows};")
        self.put(f"const {kind} row = live ? wanted : {k.rows} - 1;")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        self.row_start()
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

    def row_start(self) -> None:
        """Declare what depends on where the row begins."""

    def _finish_row(self, r: int) -> None:
        node = self.k.nodes[r]
        earlier = sum(n.op == "reduce" for n in self.k.nodes[:r])
        slots = f"shared + {earlier} * (R * T / 4)" if earlier else "shared"
        op = _OPS[node.kind]
        self.put("#pragma unroll")
        self.put(f"for (int j = 1; j < V; ++j) a{r}[0] = {op}{{}}(a{r}[0], a{r}[j]);")
        self.put(f"const {node.ctype.value} v{r} = pb_reduce<T>(a{r}[0], {op}{{}}, {slots});")
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


def _row_launches(total: int, v: int, limit: int, words: float) -> list[Launch]:
    """Threads a row so that a thread holds few elements; about 8 keep two vector loads in flight."""
    scored = []
    for t in (8, 16, 32, 64, 128, 256, 512, 1024):
        held = -(-total // (t * v)) * v
        wasted = t > 8 and held == v and total * 2 <= t * v
        if held > limit or wasted:
            continue
        launch = Launch(v, t, max(1, 128 // t), _blocks(max(128, t), int(held * words) + max(24, 5 * v)))
        scored.append((abs(held - 8) if held >= 8 else 2 * (8 - held), t, launch))
    return [launch for *_, launch in sorted(scored, key=lambda s: s[:2])]


def _blocks(threads: int, registers: int) -> int:
    """Blocks a multiprocessor must have room for: while one waits in a reduction another one loads.

    Args:
        registers: what a thread needs, for its share of the row and beside it.
    """
    if threads < 256:
        return 1
    return max(1, min(2048, REGISTERS // registers) // threads)


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
