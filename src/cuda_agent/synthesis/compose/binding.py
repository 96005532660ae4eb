"""Sizes of a seed from the shape of the tensor it is put on: each dimension's expression is solved."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuda_agent.synthesis.compose.plan import NUM_PROBES, Axis, Dim
from cuda_agent.synthesis.dims import evaluated, names_in
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import SizeRule

_FIXED_UP_TO = 16
_PROBE_STEP = 48
_PROBES = (1, 2, 3, 5, 7, 4, 11, 13, 6, 17, 9, 10)
_NAMES = {
    "batch": "batch_size",
    "n": "batch_size",
    "b": "batch_size",
    "c": "channels",
    "h": "height",
    "w": "width",
    "l": "length",
    "d": "features",
}


@dataclass
class Sizes:
    """The size constants of a task under construction.

    Attributes:
        dims: by name, in order of use.
    """

    dims: dict[str, Dim] = field(default_factory=dict)

    def copy(self) -> Sizes:
        """An independent copy."""
        return Sizes({name: replace(dim) for name, dim in self.dims.items()})

    def add(self, rule: SizeRule) -> Dim:
        """A new constant for a seed's size that nothing determines yet."""
        name = self._free_name(_NAMES.get(rule.name.lower(), rule.name))
        fixed = rule.argument and rule.base <= _FIXED_UP_TO and rule.multiple_of == 1
        probes = (rule.base,) * NUM_PROBES if fixed else self._unused(rule)
        self.dims[name] = Dim(
            name, probes, rule.least, rule.multiple_of, rule.most, argument=rule.argument, fixed=fixed
        )
        return self.dims[name]

    def _free_name(self, name: str) -> str:
        if name not in self.dims:
            return name
        stem = re.sub(r"\d+$", "", name)
        return next(f"{stem}{n}" for n in range(2, 100) if f"{stem}{n}" not in self.dims)

    def _unused(self, rule: SizeRule) -> tuple[int, ...]:
        """Values that no other constant has at the same probe."""
        found: list[int] = []
        for probe in range(NUM_PROBES):
            taken = {dim.probes[probe] for dim in self.dims.values()} | set(found)
            wanted = [rule.near(_PROBE_STEP * k) for k in _PROBES[probe * 3 :]] + [
                rule.near(rule.base + rule.multiple_of * k) for k in range(20)
            ]
            found.append(next((value for value in wanted if value not in taken), rule.base))
        return tuple(found)

    def narrow(self, name: str, rule: SizeRule, factor: int) -> bool:
        """Take in another use of a constant, ``factor`` times the seed's size; false where they conflict."""
        dim = self.dims[name]
        dim.least = max(dim.least, rule.least * factor)
        dim.multiple_of = math.lcm(dim.multiple_of, rule.multiple_of * factor)
        if rule.most is not None:
            dim.most = rule.most * factor if dim.most is None else min(dim.most, rule.most * factor)
        dim.argument = dim.argument or rule.argument
        return all(dim.fits(value) for value in dim.probes)


@dataclass(frozen=True)
class Bound:
    """A seed's sizes.

    Attributes:
        texts: as expressions over the task's constants; empty where only the values are known.
        values: at each probe.
    """

    texts: Mapping[str, str]
    values: tuple[Mapping[str, int], ...]


def bind(
    seed: Seed, shapes: Sequence[tuple[str, ...] | None], axes: Sequence[Axis], sizes: Sizes
) -> Bound | None:
    """Solve a seed's sizes so that its first input has the given shape; the others become new constants.

    Args:
        seed: to put on the tensor.
        shapes: of one of its forms.
        axes: of the tensor; empty for the first seed of a task, whose sizes are all new.
        sizes: receives new constants and what the seed asks of known ones; spoilt where ``None`` comes back.
    """
    texts: dict[str, str] = {}
    values: list[dict[str, int]] = [{} for _ in range(NUM_PROBES)]
    known = _Known(texts, values, {rule.name: rule for rule in seed.sizes})
    if axes and not all(
        _solve(expression, axis, known, sizes) for expression, axis in zip(shapes[0] or (), axes, strict=True)
    ):
        return None
    used = {name for shape in shapes if shape is not None for text in shape for name in names_in(text)}
    for rule in seed.sizes:
        if rule.name in texts or (rule.name not in used and not rule.argument):
            continue
        dim = sizes.add(rule)
        texts[rule.name] = dim.name
        for probe in range(NUM_PROBES):
            values[probe][rule.name] = dim.probes[probe]
    complete = [{rule.name: found.get(rule.name, rule.base) for rule in seed.sizes} for found in values]
    written = all(texts[rule.name] for rule in seed.sizes if rule.argument)
    return Bound(texts, tuple(complete)) if written else None


@dataclass
class _Known:
    """What is solved so far, and the rules of all sizes."""

    texts: dict[str, str]
    values: list[dict[str, int]]
    rules: Mapping[str, SizeRule]


def _solve(expression: str, axis: Axis, known: _Known, sizes: Sizes) -> bool:
    """One dimension: a number, a known size, or one unknown size times a number."""
    pairs = list(zip(known.values, axis.values, strict=True))
    if not names_in(expression) - known.texts.keys():
        return all(evaluated(expression, found) == value for found, value in pairs)
    factored = _factored(expression)
    if factored is None or factored[0] not in known.rules:
        return False
    name, factor = factored
    rule = known.rules[name]
    if any(value % factor or not rule.fits(value // factor) for value in axis.values):
        return False
    known.texts[name] = _divided(axis.text, factor)
    for found, value in pairs:
        found[name] = value // factor
    return axis.text not in sizes.dims or sizes.narrow(axis.text, rule, factor)


def _factored(expression: str) -> tuple[str, int] | None:
    """``(name, factor)`` of ``name`` or ``factor * name``."""
    match ast.parse(expression, mode="eval").body:
        case ast.Name(id=name):
            return name, 1
        case ast.BinOp(left=ast.Constant(value=int() as k), op=ast.Mult(), right=ast.Name(id=name)):
            return name, int(k)
        case ast.BinOp(left=ast.Name(id=name), op=ast.Mult(), right=ast.Constant(value=int() as k)):
            return name, int(k)
        case _:
            return None


def _divided(text: str, factor: int) -> str:
    if not text or factor == 1:
        return text
    return f"{text} // {factor}" if text.isidentifier() else f"({text}) // {factor}"


def recognised(shapes: Sequence[tuple[int, ...]], before: Sequence[Axis], sizes: Sizes) -> tuple[Axis, ...]:
    """Names for the dimensions of an output: the input's own first, then any constant that agrees.

    Args:
        shapes: of the output at each probe, equally long.
        before: dimensions of the input.
        sizes: known constants.
    """
    axes = []
    for index, values in enumerate(zip(*shapes, strict=True)):
        candidates = [*before[index : index + 1], *before]
        text = next((axis.text for axis in candidates if axis.values == values and axis.text), "")
        if not text:
            text = next((d.name for d in sizes.dims.values() if d.probes == values and not d.fixed), "")
        axes.append(Axis(text, values))
    return tuple(axes)
