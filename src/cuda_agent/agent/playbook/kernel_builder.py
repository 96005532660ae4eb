"""How a kernel's expressions are found from IR values, and its dimensions collapsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from cuda_agent.agent.playbook.affine import (
    Access,
    Affine,
    Shape,
    contiguous_strides,
    counter,
    linear,
    mergeable,
    zero,
)
from cuda_agent.agent.playbook.ir import (
    CType,
    Iota,
    Pointwise,
    Reduce,
    Reshape,
    Scalar,
    Source,
    Value,
    View,
    ctype_of,
    topological,
)
from cuda_agent.agent.playbook.kernel import Kernel, Level, Mode, Node, Store, form_level


class Materialise(Exception):
    """``value`` must be in memory before the kernel under construction can be made."""

    def __init__(self, value: Value) -> None:
        self.value = value
        super().__init__()


class NotFusable(Exception):
    """The roots tried together do not fit one kernel."""


class NotAffine(Exception):
    pass


@dataclass
class Builder:
    """Finds the expressions of one kernel.

    Attributes:
        space: extents, before collapsing; ``reduced`` its reduced dimensions.
        memory: buffer of each value that is in memory, by id of the value.
        local: ids of the values this kernel itself writes.
    """

    space: Shape
    reduced: tuple[int, ...]
    memory: Mapping[int, str]
    storage: Mapping[str, str]
    local: frozenset[int]
    nodes: list[Node] = field(default_factory=list)
    _memo: dict[tuple[int, Access], int] = field(default_factory=dict)

    @property
    def kept(self) -> Shape:
        """The space with its reduced extents at one."""
        return tuple(1 if k in self.reduced else n for k, n in enumerate(self.space))

    def root_position(self, value: Value) -> Affine:
        """Where a value that this kernel writes is at: one element each iteration, or each row."""
        if prod(value.shape) == prod(self.space):
            return linear(self.space)
        if prod(value.shape) == prod(self.kept):
            return linear(self.kept)
        raise NotFusable

    def root(self, value: Value) -> int:
        """Node of a value that this kernel writes."""
        access = Access.at_position(value.shape, self.root_position(value), self.space)
        return self.visit(value, access)

    def visit(self, value: Value, access: Access) -> int:
        """Node of one element of a value."""
        key = (id(value), access)
        if key not in self._memo:
            self._memo[key] = self._make(value, access)
        return self._memo[key]

    def _make(self, value: Value, access: Access) -> int:
        if id(value) in self.memory:
            if id(value) not in self.local:
                return self._load(self.memory[id(value)], contiguous_strides(value.shape), access)
            if access.position != self.root_position(value):
                raise NotFusable
        return self._dispatch(value, access)

    def _dispatch(self, value: Value, access: Access) -> int:
        if isinstance(value, Scalar | Source | Iota):
            return self._leaf(value, access)
        if isinstance(value, View):
            return self._view(value, access)
        if isinstance(value, Reshape):
            return self._reshape(value, access)
        if isinstance(value, Pointwise):
            return self._pointwise(value, access)
        if isinstance(value, Reduce):
            return self._reduce(value, access)
        raise Materialise(value)

    def _leaf(self, value: Scalar | Source | Iota, access: Access) -> int:
        if isinstance(value, Scalar):
            ctype = ctype_of(value.dtype)
            return self._add(Node("const", (), ctype, ctype, number=value.number))
        if isinstance(value, Source):
            return self._load(value.name, value.strides, access)
        if access.forms[0] is None:
            raise NotAffine
        form = access.forms[0].scaled(value.step, value.start)
        return self._add(Node("iota", (), CType.I, CType.I, form=form))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _load(self, buffer: str, strides: Shape, access: Access) -> int:
        form = access.offset(strides)
        if form is None:
            raise NotAffine
        form = form if len(form.coefs) == len(self.space) else zero(len(self.space))
        dtype = self.storage[buffer]
        ctype = ctype_of(dtype)
        node = Node("load", (), ctype, ctype, buffer=buffer, dtype=dtype, form=form)
        for index, other in enumerate(self.nodes):
            if other == node:
                return index
        return self._add(node)

    def _view(self, value: View, access: Access) -> int:
        rank = len(self.space)
        forms: list[Affine | None] = []
        for offset, terms in value.index:
            form: Affine | None = Affine((0,) * rank, offset)
            for dim, factor in terms:
                part = access.forms[dim]
                form = None if form is None or part is None else form + part.scaled(factor)
            forms.append(form)
        return self.visit(value.arg, Access.of_forms(value.arg.shape, forms, rank))

    def _reshape(self, value: Reshape, access: Access) -> int:
        arg = value.arg
        if id(arg) in self.memory and id(arg) not in self.local:
            return self._load(self.memory[id(arg)], contiguous_strides(value.shape), access)
        if isinstance(arg, Source) and arg.strides == contiguous_strides(arg.shape):
            return self._load(arg.name, contiguous_strides(value.shape), access)
        if access.position is None:
            raise Materialise(arg) if not isinstance(arg, Source) else NotAffine
        mark = len(self.nodes)
        try:
            return self.visit(arg, Access.at_position(arg.shape, access.position, self.space))
        except NotAffine:
            del self.nodes[mark:]
            raise Materialise(arg) from None

    def _pointwise(self, value: Pointwise, access: Access) -> int:
        rank = len(self.space)
        args = tuple(self.visit(a, access.broadcast_to(a.shape, rank)) for a in value.args)
        stage = max((self.nodes[a].stage for a in args), default=0)
        return self._add(Node(value.op, args, ctype_of(value.dtype), value.compute, stage))

    def _reduce(self, value: Reduce, access: Access) -> int:
        wanted = [value.arg.shape[d] for d in value.dims if value.arg.shape[d] != 1]
        have = [(k, self.space[k]) for k in self.reduced if self.space[k] != 1]
        kept = [f for k, f in enumerate(access.forms) if value.shape[k] != 1]
        free = all(f is not None and not any(f.coefs[k] for k in self.reduced) for f in kept)
        same_rows = prod(value.shape) == prod(self.kept)
        if wanted != [n for _, n in have] or not free or not same_rows:
            raise Materialise(value)
        rank = len(self.space)
        counters = iter(counter(rank, k) for k, _ in have)
        forms = [
            (next(counters) if value.arg.shape[k] != 1 else zero(rank)) if k in value.dims else form
            for k, form in enumerate(access.forms)
        ]
        arg = self.visit(value.arg, Access.of_forms(value.arg.shape, forms, rank))
        ctype = ctype_of(value.dtype)
        if self.nodes[arg].ctype is not ctype:
            arg = self._add(Node("cast", (arg,), ctype, ctype, self.nodes[arg].stage))
        stage = self.nodes[arg].stage + 1
        node = Node("reduce", (arg,), ctype, ctype, stage, kind=value.kind)
        return self.nodes.index(node) if node in self.nodes else self._add(node)

    def kernel(self, roots: Sequence[Value]) -> Kernel:
        """The kernel that writes the roots.

        Raises:
            Materialise: something must be in memory first.
            NotFusable: a root does not fit the space.
        """
        try:
            indices = [self.root(r) for r in roots]
        except NotAffine:
            raise Materialise(_reshaped(roots)) from None
        stores = [
            Store(name, self.storage[name], k, self.root_position(r))
            for r, k in zip(roots, indices, strict=True)
            for name in [self.memory[id(r)]]
        ]
        return _collapse(self, stores, list(roots))


def _reshaped(roots: Sequence[Value]) -> Value:
    """A value to put in memory when indices are not affine: the first reshape or view under the roots."""
    for value in topological(list(roots)):
        if isinstance(value, View) and value not in roots:
            return value
    raise NotFusable


def _collapse(builder: Builder, stores: list[Store], roots: list[Value]) -> Kernel:
    """Merge neighbouring dimensions that every form walks as one, and drop those of extent one."""
    mode = _mode(builder)
    roles = [k in builder.reduced for k in range(len(builder.space))]
    dims = [(n, roles[k], k) for k, n in enumerate(builder.space) if n != 1]
    forms = [n.form for n in builder.nodes if n.op in ("load", "iota")] + [s.form for s in stores]
    groups: list[list[int]] = []  # original dims; the last is the one whose coefficient counts
    extents: list[tuple[int, bool]] = []
    for extent, reduced, dim in dims:
        if groups and extents[-1][1] == reduced and mergeable(forms, groups[-1][-1], dim, extent):
            groups[-1].append(dim)
            extents[-1] = (extents[-1][0] * extent, reduced)
        else:
            groups.append([dim])
            extents.append((extent, reduced))
    order = [g[-1] for g in groups]
    return _assemble(builder, mode, list(zip(order, extents, strict=True)), stores=stores, roots=roots)


def _mode(builder: Builder) -> Mode:
    reduced = [k for k in builder.reduced if builder.space[k] != 1]
    if not builder.reduced:
        return Mode.POINTWISE
    last = max((k for k, n in enumerate(builder.space) if n != 1), default=0)
    return Mode.ROW if not reduced or last in reduced else Mode.COLUMN


def _assemble(
    builder: Builder,
    mode: Mode,
    dims: list[tuple[int, tuple[int, bool]]],
    *,
    stores: list[Store],
    roots: list[Value],
) -> Kernel:
    kept = [(k, n) for k, (n, r) in dims if not r]
    reduced = [(k, n) for k, (n, r) in dims if r]
    lane = 1
    tail: list[int] = []
    if mode is not Mode.ROW:
        if kept:
            lane, tail = kept[-1][1], [kept[-1][0]]
            kept = kept[:-1]
        else:
            tail = [-1]
    elif reduced:
        lane = reduced[-1][1]
    else:
        reduced = [(-1, 1)]
    columns = [k for k, _ in kept] + [k for k, _ in reduced] + tail

    def remap(form: Affine) -> Affine:
        return Affine(tuple(form.coefs[k] if k >= 0 else 0 for k in columns), form.const)

    nodes = [replace(n, form=remap(n.form)) if n.op in ("load", "iota") else n for n in builder.nodes]
    kernel = Kernel(
        mode=mode,
        outer=tuple(n for _, n in kept),
        reduced=tuple(n for _, n in reduced),
        lane=lane,
        nodes=nodes,
        stores=[replace(s, form=remap(s.form)) for s in stores],
        stages=max((n.stage for n in nodes), default=0),
        roots=roots,
    )
    _set_levels(kernel)
    return kernel


def _set_levels(kernel: Kernel) -> None:
    for index, node in enumerate(kernel.nodes):
        level = max((kernel.nodes[a].level for a in node.args), default=Level.OUTER)
        if node.op in ("load", "iota"):
            level = form_level(kernel, node.form)
        elif node.op == "reduce":
            level = Level.LANE if kernel.mode is Mode.COLUMN else Level.OUTER
        kernel.nodes[index] = replace(node, level=level)
