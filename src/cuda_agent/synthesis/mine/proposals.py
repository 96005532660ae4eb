"""Values and shapes to try, most plausible first. What counts is what runs; this only orders the search."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.mine.parameters import Kind, Parameter
from cuda_agent.synthesis.seed_rules import Value

BASE = (4, 12, 8, 10, 6)
"""Sizes of an input's dimensions, first to last; multiples of 2, so that halves and groups work."""
SIZES = (24, 32, 48, 40, 20)
"""Sizes that constructors take, in the order of their arguments."""
NEW = 14
"""A size that nothing else has."""

_SIZE_NAME = re.compile(
    r"(?i)(features|channels|hidden|embed|_size$|d_model|nhead_dim|width|vocab|classes|intermediate"
    r"|normalized_shape|num_parameters|^size$|feedforward|_dim$)"
)
_NOT_SIZE = re.compile(r"(?i)(kernel_size|output_size|patch_size|split_size|win_|window)")
_INTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"(?i)(^|_)dims?\d*$|axis|axes|destination|source", (-1, 1, -2, 0)),
    (r"(?i)kernel|window|patch", (3, 2, 5)),
    (r"(?i)stride|padding|dilation|offset|shifts|diagonal|start", (1, 2, 0)),
    (r"(?i)heads|groups|experts", (4, 2)),
    (r"(?i)layers|depth|factor|upscale|downscale|chunks|sections|blocks", (2, 3)),
    (r"(?i)embeddings|vocab|classes|n_fft|cutoffs", (10, 12)),
    (r"(?i)output_size|split_size|length", (5, 3, 7)),
)
_ANY_INT = (2, 1, 3, 0, -1, 12)


def is_size(parameter: Parameter) -> bool:
    """Whether a number is one that shapes depend on, by its name."""
    fit = parameter.kind in (Kind.INT, Kind.INTS)
    return fit and bool(_SIZE_NAME.search(parameter.name)) and not _NOT_SIZE.search(parameter.name)


def is_axis(parameter: Parameter) -> bool:
    """Whether a number is one that picks a dimension, by its name."""
    return bool(re.search(r"(?i)^(dims?|axis|axes)$", parameter.name))


def values(parameter: Parameter, doc: str) -> tuple[Value, ...]:
    """Values to try for a parameter, its default aside.

    Args:
        parameter: any; a tensor that a constructor may be given is left out.
        doc: documentation of the operator, for the words it takes.
    """
    if parameter.is_tensor:
        return ()
    if parameter.literals:
        return parameter.literals
    return _BY_KIND[parameter.kind](parameter, doc)


def _ints(parameter: Parameter, _: str) -> tuple[Value, ...]:
    if is_size(parameter):
        return SIZES[:2]
    found = next((v for pattern, v in _INTS if re.search(pattern, parameter.name)), _ANY_INT)
    if isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
        near = (parameter.default + 1, parameter.default + 2)
        return tuple(dict.fromkeys((*found, *(near if found is _ANY_INT else ()))))
    return found


def _tuples(parameter: Parameter, doc: str) -> tuple[Value, ...]:
    singles = _ints(parameter, doc)
    if re.search(r"(?i)^dims?$|axis|axes", parameter.name):
        return (*singles[:3], (-1,), (1,), (0, 1), (-2, -1), (1, 0), (0, 2, 1))
    pairs = [(a, a) for a in singles[:2]] + [(singles[0], 2), (1, 2)]
    return (*singles[:3], *pairs, (singles[0],), (1, 2, 1, 2), (2, 2, 2), (1, 2, 3))


def _floats(parameter: Parameter, _: str) -> tuple[Value, ...]:
    name = parameter.name
    if re.search(r"(?i)^min|low", name):
        return (-0.5, -1.0)
    if re.search(r"(?i)^max|upper", name):
        return (0.5, 1.0)
    if isinstance(parameter.default, int | float) and parameter.default:
        return _near(float(parameter.default))
    return (0.5, 2.0, 1.5, 0.1, 3.0)


def _near(default: float) -> tuple[float, ...]:
    """A default's neighbours, as a person would write them."""
    if abs(default) < 1e-3:
        return tuple(v for v in (1e-5, 1e-6, 1e-3) if v != default)
    return tuple(float(f"{default * factor:.3g}") for factor in (2.0, 0.5, 1.5))


def _texts(parameter: Parameter, doc: str) -> tuple[Value, ...]:
    """Quoted words of the documentation; those beside the parameter's name first."""
    near = " ".join(re.findall(rf"{re.escape(parameter.name)}[^\n]*(?:\n[^\n]+){{0,4}}", doc))
    quoted = re.findall(r"['\"`]([^'\"`\n]{1,40})['\"`]", f"{near} {doc}")
    return tuple(dict.fromkeys(q for q in quoted if q != parameter.default))[:24]


def _others(parameter: Parameter, doc: str) -> tuple[Value, ...]:
    if re.search(r"(?i)(^|_)dims?\d?$", parameter.name):
        return (-1, 1, 0)
    return _texts(parameter, doc) if parameter.required else ()


_BY_KIND = {
    Kind.INT: _ints,
    Kind.INTS: _tuples,
    Kind.FLOAT: _floats,
    Kind.BOOL: lambda parameter, _: (not parameter.default,),
    Kind.TEXT: _texts,
    Kind.OTHER: _others,
}


def constructions(hyper: Sequence[Parameter], doc: str, *, limit: int = 40) -> Iterator[dict[str, Value]]:
    """Options to try: what must be given first, then with one and with all of the others given.

    Args:
        hyper: parameters that are no tensors.
        doc: documentation.
        limit: number of combinations.
    """
    required = [p for p in hyper if p.required]
    optional = [p for p in hyper if not p.required and p.default is None]
    pools = [_required_values(p, index, required, doc) for index, p in enumerate(required)]
    combos = sorted(itertools.product(*(range(len(pool)) for pool in pools)), key=sum)[:limit]
    base = [{p.name: pool[i] for p, pool, i in zip(required, pools, combo, strict=True)} for combo in combos]
    yield from base
    extra = {p.name: v[0] for p in optional if (v := values(p, doc))}
    for given in base[:4]:
        for name, value in extra.items():
            yield {**given, name: value}
        if len(extra) > 1:
            yield {**given, **extra}


def _required_values(
    parameter: Parameter, index: int, required: Sequence[Parameter], doc: str
) -> tuple[Value, ...]:
    if is_size(parameter):
        rank = sum(is_size(p) for p in required[:index])
        return (SIZES[rank % len(SIZES)], SIZES[0], BASE[0])
    return values(parameter, doc)[:8] or (None,)


Shape = tuple[int, ...]


def first_shapes(rank: int, sizes: Sequence[int]) -> list[Shape]:
    """Shapes of the first input.

    Args:
        rank: number of dimensions.
        sizes: numbers among the options.
    """
    base = BASE[:rank] if rank > 1 else BASE[1:2] * rank
    found: dict[Shape, None] = {base: None}
    for size in dict.fromkeys(s for s in sizes if s > 1):
        for axis in (1, *range(rank)) if rank > 1 else range(rank):
            found[(*base[:axis], size, *base[axis + 1 :])] = None
    if rank >= 2:
        found[(*base[:-2], 12, 12)] = None
        found[(*base[:-1], 2)] = None
        found[(*base[:-1], 3)] = None
        found[(2, *base[1:])] = None
        found[(*base[:-1], 1)] = None
    if rank >= 3:
        found[(base[0], 12, *(8,) * (rank - 2))] = None
        found[(*base[:-3], 3, *base[-2:])] = None
    found[(16,) * rank] = None
    return list(found)


def next_shapes(before: Sequence[Shape], sizes: Sequence[int], *, weight: bool = False) -> list[Shape]:
    """Shapes of an input, given those of the inputs before it.

    Args:
        before: shapes of earlier inputs, the first at least.
        sizes: numbers among the options.
        weight: it is the weight of a product or convolution, by its name.
    """
    first = before[0]
    rank = len(first)
    found: dict[Shape, None] = dict.fromkeys(_weights(first)) if weight else {}
    found[first] = None
    for shape in before[1:]:
        found[shape] = None
    found[first[:-1]] = None
    if rank >= 2:
        found |= dict.fromkeys(_related(first))
    for shape in before[1:]:
        if len(shape) >= 2:
            found[shape[:1]] = found[(*shape[:-1], NEW)] = None
    for size in dict.fromkeys(s for s in sizes if s > 1):
        found[(*first[:-1], size)] = found[(size,)] = None
        if rank >= 2:
            found[(first[0], size, *first[2:])] = found[(first[0], size)] = None
    found[()] = None
    return list(found)


def _weights(first: Shape) -> list[Shape]:
    if len(first) < 2:
        return []
    window = (3,) * (len(first) - 2)
    found: list[Shape] = [(NEW, first[-1])]
    if window:
        found += [(NEW, first[1], *window), (first[1], NEW, *window)]
    return found


def _related(first: Shape) -> list[Shape]:
    rank = len(first)
    lead, last = first[:-2], first[-1]
    return [
        (first[0], *first[2:]),
        first[:1],
        first[1:2],
        first[-1:],
        (*lead, last, NEW),
        (*lead, NEW, last),
        (*first[:-1], NEW),
        (NEW, last),
        (last, NEW),
        (NEW, first[1], *(3,) * (rank - 2)),
        (first[1], NEW, *(3,) * (rank - 2)),
        (first[0], *first[2:-1], NEW, rank - 2),
        (first[0], *(5,) * (rank - 2), rank - 2),
        first[1:],
        first[:2],
        first[-2:],
        (first[0], 6, *first[2:]),
        (last, last),
        (first[0], rank - 2, rank - 1),
        (NEW,),
        (3,),
    ]


def shape_combos(
    rank: int, weights: Sequence[bool], sizes: Sequence[int], limit: int
) -> Iterator[tuple[Shape, ...]]:
    """Shapes of all inputs, simplest combinations first.

    Args:
        rank: of the first input.
        weights: for each input, whether it is a weight by its name; one at least.
        sizes: numbers among the options.
        limit: number of combinations.
    """
    rows: list[tuple[int, tuple[Shape, ...]]] = [
        (cost, (shape,)) for cost, shape in enumerate(first_shapes(rank, sizes))
    ]
    for weight in weights[1:]:
        grown = [
            (cost + extra, (*shapes, shape))
            for cost, shapes in rows
            for extra, shape in enumerate(next_shapes(shapes, sizes, weight=weight))
        ]
        rows = sorted(grown, key=lambda row: row[0])[: max(limit, 200)]
    yield from (shapes for _, shapes in rows[:limit])


_REFINED = (
    Law.SYMMETRIC_UNIT,
    Law.POSITIVE,
    Law.UNIT,
    Law.ABOVE_ONE,
    Law.PROBABILITIES,
    Law.POSITIVE_DEFINITE,
    Law.INVERTIBLE,
    Law.TRIANGULAR,
)
_BY_WORDS: tuple[tuple[str, Law], ...] = (
    (r"(?i)class (ind(ex|ices)|label)", Law.INTEGERS),
    (r"log[- ]probabilit", Law.LOG_PROBABILITIES),
    (r"(?<![\w])(1 or -1|-1 or 1|1 and -1|-1 and 1|1 or :math:`-1|:math:`-1`|\+1)", Law.SIGNS),
    (r"probabilit", Law.PROBABILITIES),
    (r"between 0 and 1|numbers? between 0|0 and 1|0 or 1", Law.UNIT),
    (r"(?i)triangular", Law.TRIANGULAR),
    (r"(?i)positive[- ]definite|Cholesky", Law.POSITIVE_DEFINITE),
    (r"(?i)\b(ind(ex|ices)|class label|LongTensor|long tensor|integer tensor|int64)\b", Law.INTEGERS),
    (r"(?i)\bcomplex\b", Law.COMPLEX),
    (r"(?i)boolean|BoolTensor|\bmask\b", Law.BOOL),
)
_BY_NAME: tuple[tuple[str, Law], ...] = (
    (r"(?i)^(ind(ex|ices)|repeats|lengths?|.*_lengths|.*labels|.*_ids|offsets)$", Law.INTEGERS),
    (r"(?i)(^|_)mask$|condition", Law.BOOL),
    (r"(?i)^(var|running_var|rate|scales?)$", Law.POSITIVE),
    (r"(?i)^(sorted_sequence|boundaries|xp?)$", Law.SORTED),
    (r"(?i)^target$", Law.INTEGERS),
    (r"(?i)^targets?$", Law.SIGNS),
)


def hinted_laws(parameter: Parameter, doc: str) -> tuple[Law, ...]:
    """Laws that the documentation of an argument, or its name, speaks of."""
    if parameter.name == "weight":
        return ()
    text = _paragraph(parameter.name, doc)
    words = [law for pattern, law in _BY_WORDS if re.search(pattern, text)]
    named = [law for pattern, law in _BY_NAME if re.search(pattern, parameter.name)]
    return tuple(dict.fromkeys((*words, *named)))


def _paragraph(name: str, doc: str) -> str:
    """What a documentation says of an argument."""
    head = rf"^\s*(?:-\s*)?[*`]*{re.escape(name)}[*`]*\s*(?:\([^)]*\))?\s*(?:[:\u2013-]|--)"
    found = re.search(rf"{head}.*(?:\n\s{{6,}}.*)*", doc, re.IGNORECASE | re.MULTILINE)
    return found.group(0) if found else ""


def law_combos(inputs: Sequence[Parameter], doc: str) -> Iterator[tuple[Law, ...]]:
    """Laws of all inputs to find shapes with: floats first, then what is hinted, then other types."""
    plain = (Law.NORMAL,) * len(inputs)
    found: dict[tuple[Law, ...], None] = {}
    hints = [hinted_laws(p, doc) for p in inputs]
    found[tuple(h[0] if h else Law.NORMAL for h in hints)] = None
    found[plain] = None
    for law in (Law.INTEGERS, Law.BOOL, Law.COMPLEX):
        for index in range(len(inputs) - 1, -1, -1):
            found[(*plain[:index], law, *plain[index + 1 :])] = None
        if len(inputs) > 2:
            found[(Law.NORMAL, *(law,) * (len(inputs) - 1))] = None
        found[(law,) * len(inputs)] = None
    yield from found


def refined_laws(parameter: Parameter, doc: str, law: Law) -> tuple[Law, ...]:
    """Laws to try for an input whose shape is right and whose values are not."""
    if law in (Law.INTEGERS, Law.BOOL, Law.COMPLEX):
        return (law,)
    hints = [h for h in hinted_laws(parameter, doc) if h not in (Law.INTEGERS, Law.BOOL, Law.COMPLEX)]
    return tuple(dict.fromkeys((*hints, law, *_REFINED)))


def numbers_in(options: Mapping[str, Value]) -> list[int]:
    """The whole numbers among options, items of tuples included."""
    found: list[int] = []
    for value in options.values():
        items = value if isinstance(value, tuple) else (value,)
        found += [v for v in items if isinstance(v, int) and not isinstance(v, bool)]
    return found
