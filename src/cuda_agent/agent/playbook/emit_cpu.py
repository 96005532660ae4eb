"""C++ for the cpu backend: OpenMP over rows, vector loops inside, several partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from cuda_agent.agent.playbook.emit_base import Emitter
from cuda_agent.agent.playbook.expr import CHEAP, FUNCTIONS, identity, needed_for
from cuda_agent.agent.playbook.ir import CType
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store

C_TYPES = {
    "float32": "float", "float16": "uint16_t", "bfloat16": "uint16_t", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
BLOCK = 2048
"""Elements summed in float32 before the partial sum joins a double: bounds the rounding error."""
CALLS = 4
"""Costly functions in one loop with several outputs."""
TILE = 256
"""Columns that one thread reduces together in a column kernel."""
SCRATCH = 16_384
"""Longest row, elements, whose costly intermediates are kept instead of computed again."""
SPLIT = 65_536
"""Shortest row, elements, that several threads share when there are fewer rows than threads."""


class CpuEmitter(Emitter):
    """Writes one kernel as a C++ function ``static void NAME(pointers..., int64_t config)``."""

    c_types = C_TYPES

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.split = kernel.mode is Mode.ROW and kernel.rows < 4 and prod(kernel.reduced) >= SPLIT
        self.kept: dict[int, str] = {}
        self.made: set[int] = set()

    def function(self, name: str) -> str:
        """The whole function."""
        {Mode.POINTWISE: self._pointwise, Mode.ROW: self._row, Mode.COLUMN: self._column}[self.k.mode]()
        body = "\n".join(self.lines)
        return f"static void {name}({', '.join([*self.parameters(), 'int64_t config'])}) {{\n{body}\n}}\n"

    # Pointwise

    def _pointwise(self) -> None:
        k = self.k
        rows, lane = k.rows, k.lane
        self.put("// config bit 0: one thread; above it: elements a thread takes at a time, 4096 << n.")
        self.put("const int64_t chunk = (int64_t)4096 << (config >> 1);")
        self.put(f"const int64_t chunks = ({lane} + chunk - 1) / chunk;")
        threshold = f"!(config & 1) && {k.numel} >= {self.serial_below()}"
        self.put(f"#pragma omp parallel for schedule(static) if ({threshold})")
        self.open(f"for (int64_t item = 0; item < {rows} * chunks; ++item)")
        self.put("const int64_t row = item / chunks, c0 = item % chunks * chunk;")
        self.put(f"const int64_t c1 = std::min<int64_t>(c0 + chunk, {lane});")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        needed = needed_for(k, [s.node for s in k.stores])
        self.compute(self.at(Level.OUTER, needed))
        for stores in self._groups():
            self.put("#pragma omp simd")
            self.open("for (int64_t c = c0; c < c1; ++c)")
            self.scoped(partial(self._whole_elements, stores))
            self.close()
        self.close()

    def _whole_elements(self, stores: Sequence[Store]) -> None:
        self.compute(self.at(Level.FULL, needed_for(self.k, [s.node for s in stores])))
        for store in stores:
            self.store(store)

    def _groups(self) -> list[list[Store]]:
        """Stores by loop: the compiler leaves a loop scalar that calls too many functions.

        A chunk stays in the nearest cache from loop to loop; outputs that share what is costly stay together.
        """
        groups: list[tuple[list[Store], set[int]]] = []
        for store in self.k.stores:
            needed = needed_for(self.k, [store.node])
            costly = {i for i in needed if self.k.nodes[i].op in FUNCTIONS - CHEAP}
            for stores, calls in groups:
                if len(calls | costly) <= CALLS or (costly and costly <= calls):
                    stores.append(store)
                    calls.update(costly)
                    break
            else:
                groups.append(([store], set(costly)))
        return [stores for stores, _ in groups]

    def serial_below(self) -> int:
        """Elements under which starting threads costs more than it saves: about 10 us of work."""
        costly = sum(n.op in FUNCTIONS - CHEAP for n in self.k.nodes)
        return max(8_192, 65_536 // (1 + 2 * costly))

    # Rows

    def _row(self) -> None:
        k = self.k
        if self.split:
            self.put("// Few long rows: all threads share each row (config bit 0: one thread).")
            self.open(f"for (int64_t row = 0; row < {k.rows}; ++row)")
        else:
            self.put("// Config bit 0: one thread.")
            threshold = f"!(config & 1) && {k.numel} >= {self.serial_below()}"
            self.put(f"#pragma omp parallel for schedule(static) if ({threshold})")
            self.open(f"for (int64_t row = 0; row < {k.rows}; ++row)")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        self._choose_kept()
        for index, name in self.kept.items():
            size = prod(k.reduced)
            self.put(f"alignas(64) {k.nodes[index].ctype.value} {name}[{size}];")
        for stage in range(1, k.stages + 1):
            self._row_stage(stage)
        self._row_outer(k.stages)
        if full := self.full_stores():
            self._row_loop([s.node for s in full], self._store_all(full), "")
        for store in self.row_stores():
            self.store(store)
        self.close()

    def _store_all(self, stores: Sequence[Store]) -> Callable[[], None]:
        def body() -> None:
            for store in stores:
                self.store(store)

        return body

    def _row_outer(self, stage: int) -> None:
        """Expressions constant over the row that the reductions so far allow."""
        for index, node in enumerate(self.k.nodes):
            if node.level is Level.OUTER and node.stage <= stage:
                self.compute([index])

    def _choose_kept(self) -> None:
        """Costly element expressions needed by more than one pass are kept in a buffer."""
        k = self.k
        if self.split or prod(k.reduced) > SCRATCH or len(k.reduced) > 1:
            return
        passes = [needed_for(k, [k.nodes[r].args[0] for r in self.stage_reductions(s)])
                  for s in range(1, k.stages + 1)]  # fmt: skip
        passes.append(needed_for(k, [s.node for s in self.full_stores()]))
        for index, node in enumerate(k.nodes):
            costly = node.op in FUNCTIONS - CHEAP and node.level is Level.FULL
            if costly and sum(index in p for p in passes) > 1 and len(self.kept) < 2:
                self.kept[index] = f"s{index}"

    def _row_stage(self, stage: int) -> None:
        k = self.k
        self._row_outer(stage - 1)
        reductions = self.stage_reductions(stage)
        if not reductions:
            return
        shared: list[str] = []
        for r in reductions:
            node = k.nodes[r]
            wide = node.kind in ("sum", "prod") and node.ctype is CType.F
            ctype = "double" if wide else node.ctype.value
            self.put(f"{ctype} t{r} = {identity(node.kind, node.ctype)};")
            shared.append(f"reduction({_OMP[node.kind]}:t{r})")
            if self._watches_nan(node):
                self.put(f"int n{r} = 0;")
                shared.append(f"reduction(|:n{r})")
        partials = [r for r in reductions]
        self._row_loop([k.nodes[r].args[0] for r in reductions], lambda: self._accumulate(partials),
                       " ".join(shared), partials)  # fmt: skip
        for r in reductions:
            node = k.nodes[r]
            value = f"({node.ctype.value})t{r}"
            if self._watches_nan(node):
                value = f"n{r} ? NAN : t{r}"
            self.names[r] = f"v{r}"
            self.put(f"const {node.ctype.value} v{r} = {value};")

    def _watches_nan(self, node: Node) -> bool:
        return node.kind in ("max", "min") and node.ctype is CType.F

    def _accumulate(self, reductions: Sequence[int]) -> None:
        for r in reductions:
            node = self.k.nodes[r]
            value = self.ref(node.args[0])
            if node.kind in ("sum", "prod"):
                self.put(f"a{r} {'+' if node.kind == 'sum' else '*'}= {value};")
                continue
            sign = ">" if node.kind == "max" else "<"
            self.put(f"a{r} = {value} {sign} a{r} ? {value} : a{r};")
            if self._watches_nan(node):
                self.put(f"n{r} |= {value} != {value};")

    def _row_loop(
        self, targets: Sequence[int], body: Callable[[], None], shared: str, partials: Sequence[int] = ()
    ) -> None:
        """One pass over the row, in blocks; ``partials`` are summed within a block, then joined."""
        k = self.k
        lead, lane = k.reduced[:-1], k.lane
        blocks = -(-lane // BLOCK)
        self.declare_divisors(self._needed_until(targets, set(self.made)))
        if self.split:
            self.put(f"#pragma omp parallel for schedule(static) if (!(config & 1)) {shared}")
        self.open(f"for (int64_t block = 0; block < {prod(lead) * blocks}; ++block)")
        names = self.counters()[len(k.outer) : -1]
        self.digits(f"block / {blocks}" if blocks > 1 else "block", lead, names)
        start = f"block % {blocks} * {BLOCK}" if blocks > 1 else "0"
        self.put(f"const int64_t c0 = {start}, c1 = std::min<int64_t>(c0 + {BLOCK}, {lane});")
        simd = []
        for r in partials:
            node = k.nodes[r]
            self.put(f"{node.ctype.value} a{r} = {identity(node.kind, node.ctype)};")
            simd.append(f"reduction({_OMP[node.kind]}:a{r})")
            if self._watches_nan(node):
                simd.append(f"reduction(|:n{r})")
        self.put(f"#pragma omp simd {' '.join(simd)}".rstrip())
        self.open("for (int64_t c = c0; c < c1; ++c)")
        self.scoped(lambda: self._elements(targets, body))
        self.close()
        for r in partials:
            self._join(r)
        self.close()

    def _join(self, r: int) -> None:
        node = self.k.nodes[r]
        if node.kind in ("sum", "prod"):
            self.put(f"t{r} {'+' if node.kind == 'sum' else '*'}= a{r};")
        else:
            sign = ">" if node.kind == "max" else "<"
            self.put(f"t{r} = a{r} {sign} t{r} ? a{r} : t{r};")

    def _elements(self, targets: Sequence[int], body: Callable[[], None]) -> None:
        """Expressions of one element; kept ones are read back after the pass that made them."""
        stop = set(self.made)
        for index in self._needed_until(targets, stop):
            if index in stop:
                self.names[index] = f"{self.kept[index]}[c]"
            elif self.k.nodes[index].level is Level.FULL:
                self.compute([index])
                if index in self.kept:
                    self.put(f"{self.kept[index]}[c] = v{index};")
                    self.made.add(index)
        body()

    def _needed_until(self, targets: Sequence[int], stop: set[int]) -> list[int]:
        seen: set[int] = set()
        stack = list(targets)
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            if index not in stop and self.k.nodes[index].op != "reduce":
                stack.extend(self.k.nodes[index].args)
        return sorted(seen)

    # Columns

    def _column(self) -> None:
        k = self.k
        tiles = -(-k.lane // TILE)
        self.put("// Each item is a tile of neighbouring columns; config bit 0: one thread.")
        threshold = f"!(config & 1) && {k.numel} >= {self.serial_below()}"
        self.put(f"#pragma omp parallel for schedule(static) if ({threshold})")
        self.open(f"for (int64_t item = 0; item < {k.rows * tiles}; ++item)")
        self.put(f"const int64_t row = item / {tiles}, first = item % {tiles} * {TILE};")
        self.put(f"const int64_t width = std::min<int64_t>({TILE}, {k.lane} - first);")
        self.digits("row", k.outer, self.counters()[: len(k.outer)])
        for stage in range(1, k.stages + 1):
            self._lane_values(stage - 1)
            self._column_stage(stage)
        self._lane_values(k.stages)
        if full := self.full_stores():
            self._column_loop([s.node for s in full], self._store_all(full))
        if rows := self.row_stores():
            self._lanes(self._store_all(rows))
        self.close()

    def _lanes(self, body: Callable[[], None]) -> None:
        self.put("#pragma omp simd")
        self.open("for (int64_t l = 0; l < width; ++l)")
        self.put("const int64_t c = first + l;")
        self.scoped(body)
        self.close()

    def _lane_values(self, stage: int) -> None:
        """Expressions of one column, kept in an array over the tile."""
        self._row_outer(stage)
        wanted = [i for i, n in enumerate(self.k.nodes)
                  if n.level is Level.LANE and n.op != "reduce" and n.stage <= stage
                  and i not in self.names]  # fmt: skip
        if not wanted:
            return
        for index in wanted:
            self.put(f"alignas(64) {self.k.nodes[index].ctype.value} w{index}[{TILE}];")

        def body() -> None:
            self.compute(wanted)
            for index in wanted:
                self.put(f"w{index}[l] = v{index};")

        self._lanes(body)
        self.names.update({index: f"w{index}[l]" for index in wanted})

    def _column_stage(self, stage: int) -> None:
        k = self.k
        reductions = self.stage_reductions(stage)
        for r in reductions:
            node = k.nodes[r]
            wide = node.kind in ("sum", "prod") and node.ctype is CType.F
            ctype, start = node.ctype.value, identity(node.kind, node.ctype)
            self.put(f"alignas(64) {'double' if wide else ctype} t{r}[{TILE}];")
            self.put(f"alignas(64) {ctype} a{r}[{TILE}];")
            self.put(f"std::fill_n(t{r}, {TILE}, {start});")
        self._column_loop(
            [k.nodes[r].args[0] for r in reductions], lambda: self._combine(reductions), reductions
        )
        for r in reductions:
            node = k.nodes[r]
            if node.kind in ("sum", "prod") and node.ctype is CType.F:
                self.put(f"for (int64_t l = 0; l < {TILE}; ++l) a{r}[l] = (float)t{r}[l];")
                self.names[r] = f"a{r}[l]"
            else:
                self.names[r] = f"t{r}[l]"

    def _combine(self, reductions: Sequence[int], accumulator: str = "a") -> None:
        for r in reductions:
            node = self.k.nodes[r]
            value, target = self.ref(node.args[0]), f"{accumulator}{r}[l]"
            if node.kind in ("sum", "prod"):
                self.put(f"{target} {'+' if node.kind == 'sum' else '*'}= {value};")
            else:
                self.put(f"{target} = pb_{node.kind}({target}, {value});")

    def _column_loop(
        self, targets: Sequence[int], body: Callable[[], None], reductions: Sequence[int] = ()
    ) -> None:
        k = self.k
        total, block = prod(k.reduced), 128
        self.open(f"for (int64_t block = 0; block < {total}; block += {block})")
        for r in reductions:
            node = k.nodes[r]
            self.put(f"std::fill_n(a{r}, {TILE}, {identity(node.kind, node.ctype)});")
        self.open(f"for (int64_t r = block; r < std::min<int64_t>(block + {block}, {total}); ++r)")
        self.digits("r", k.reduced, self.counters()[len(k.outer) : -1])

        def element() -> None:
            self.compute(self.at(Level.FULL, needed_for(k, targets)))
            body()

        self._lanes(element)
        self.close()
        for r in reductions:
            node = k.nodes[r]
            joined = f"t{r}[l] = pb_{node.kind}(t{r}[l], a{r}[l])"
            if node.kind in ("sum", "prod"):
                joined = f"t{r}[l] {'+' if node.kind == 'sum' else '*'}= a{r}[l]"
            self.put(f"for (int64_t l = 0; l < {TILE}; ++l) {joined};")
        self.close()


_OMP = {"sum": "+", "prod": "*", "max": "max", "min": "min"}
