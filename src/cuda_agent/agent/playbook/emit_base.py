"""What the emitters of both backends share: text, counters, expressions, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import ClassVar

from cuda_agent.agent.playbook.expr import affine_text, convert, literal, pointwise_text
from cuda_agent.agent.playbook.ir import CType
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store, form_level


class Emitter:
    """Writes the body of one kernel.

    Attributes:
        lines: source lines so far.
        buffers: C name of each buffer.
        names: C expression of each node that has been computed.
    """

    c_types: ClassVar[Mapping[str, str]] = {}

    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.buffers = {name: f"b{n}" for n, name in enumerate(kernel.buffers)}
        self.names: dict[int, str] = {}
        self.divisors: set[int] = set()

    def parameters(self) -> list[str]:
        """Pointer parameters, in the order of the kernel's buffers."""
        types: dict[str, str] = {}
        for node in self.k.nodes:
            if node.op == "load":
                types[node.buffer] = f"const {self.c_types[node.dtype]}*"
        for store in self.k.stores:
            types[store.buffer] = f"{self.c_types[store.dtype]}*"
        return [f"{types[b]} __restrict__ {v}" for b, v in self.buffers.items()]

    def put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.put(line + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.put("}")

    def counters(self) -> list[str]:
        """Names of the counters, in the order of every form's coefficients."""
        outer = [f"i{n}" for n in range(len(self.k.outer))]
        reduced = [f"r{n}" for n in range(len(self.k.reduced))]
        if self.k.mode is Mode.ROW:
            return [*outer, *reduced[:-1], "c"]
        return [*outer, *reduced, "c"]

    def digits(self, source: str, extents: Sequence[int], names: Sequence[str]) -> None:
        """Counters of the extents from a row-major position."""
        step = prod(extents)
        for n, (extent, name) in enumerate(zip(extents, names, strict=True)):
            step //= extent
            text = source if step == 1 else f"{source} / {step}"
            self.put(f"const int64_t {name} = {text if n == 0 else f'({text}) % {extent}'};")

    def ref(self, index: int) -> str:
        node = self.k.nodes[index]
        return literal(node.number, node.ctype) if node.op == "const" else self.names[index]

    def expression(self, node: Node) -> str:
        """C expression of a node; what is constant over a row divides by two multiplications."""
        if self._divides_by_row(node) and node.args[1] in self.divisors:
            return f"d{node.args[1]}.into({self.ref(node.args[0])})"
        if node.op == "load":
            text = f"{self.buffers[node.buffer]}[{affine_text(node.form, self.counters())}]"
            if node.dtype in ("float16", "bfloat16"):
                return f"pb_from_{node.dtype}({text})"
            return convert(text, CType.I, CType.B) if node.dtype == "bool" else text
        if node.op == "iota":
            return affine_text(node.form, self.counters())
        types = [self.k.nodes[a].ctype for a in node.args]
        return pointwise_text(node, [self.ref(a) for a in node.args], types)

    def _divides_by_row(self, node: Node) -> bool:
        if self.k.mode is not Mode.ROW or node.op != "div" or node.level is not Level.FULL:
            return False
        types = {node.compute, *(self.k.nodes[a].ctype for a in node.args)}
        return types == {CType.F} and self.k.nodes[node.args[1]].level is Level.OUTER

    def declare_divisors(self, needed: Iterable[int]) -> None:
        """Before a loop over a row: the divisors that its elements share."""
        divisors = {self.k.nodes[i].args[1] for i in needed if self._divides_by_row(self.k.nodes[i])}
        for index in sorted(divisors - self.divisors):
            self.put(f"const PbDivisor d{index}({self.ref(index)});")
        self.divisors |= divisors

    def compute(self, indices: Iterable[int]) -> None:
        """Declare the nodes not yet named."""
        for index in indices:
            node = self.k.nodes[index]
            if node.op in ("const", "reduce") or index in self.names:
                continue
            self.names[index] = f"v{index}"
            self.put(f"const {node.ctype.value} v{index} = {self.expression(node)};")

    def store(self, store: Store) -> None:
        node = self.k.nodes[store.node]
        value, ctype = self.ref(store.node), node.ctype
        target = f"{self.buffers[store.buffer]}[{affine_text(store.form, self.counters())}]"
        if store.dtype in ("float16", "bfloat16"):
            value = f"pb_to_{store.dtype}({convert(value, ctype, CType.F)})"
        elif store.dtype == "bool":
            value = f"(uint8_t){convert(value, ctype, CType.B)}"
        else:
            value = f"({self.c_types[store.dtype]}){value}"
        self.put(f"{target} = {value};")

    def scoped(self, body: Callable[[], None]) -> None:
        """Run ``body``; names declared inside do not outlive it."""
        names = dict(self.names)
        body()
        self.names = names

    def at(self, level: Level, indices: Iterable[int]) -> list[int]:
        return [i for i in indices if self.k.nodes[i].level is level and self.k.nodes[i].op != "reduce"]

    def stage_reductions(self, stage: int) -> list[int]:
        return [i for i, n in enumerate(self.k.nodes) if n.op == "reduce" and n.stage == stage]

    def full_stores(self) -> list[Store]:
        """Stores of one element each iteration."""
        level = Level.FULL
        return [s for s in self.k.stores if form_level(self.k, s.form) is level]

    def row_stores(self) -> list[Store]:
        """Stores of one element a row (or a lane)."""
        full = self.full_stores()
        return [s for s in self.k.stores if s not in full]
