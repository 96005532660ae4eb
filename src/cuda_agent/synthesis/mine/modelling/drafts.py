"""What to try for a class of transformers: small numbers for its constructor, shapes for its inputs.

Names order the search and no more: what counts is what runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.seed_rules import Shape

Number = int | float
FREE = {"batch": 3, "length": 12, "height": 16, "width": 20, "other_length": 18, "features": 28}
"""Sizes that belong to inputs alone."""
_LADDER = (64, 96, 160, 192, 224, 288, 320, 352)
_HIDDEN = 256
HEAD_DIM = re.compile(r"head_dim|d_kv$|dim_head|head_size|nope_")
"""Widths of one head."""
POSITIONS = re.compile(r"position|max_seq|max_len|n_ctx|max_source")
"""Longest lengths."""
_TABLE: tuple[tuple[str, int, int], ...] = (
    # name, largest default that is kept, what is tried else
    (r"(key_value|kv)_?heads|num_kv|n_kv|multi_query_group", 0, 4),
    (r"rope_dim|rope_head|rotary_dim", 0, 16),
    (HEAD_DIM.pattern, 0, 32),
    (r"heads?$|nhead|head_num|heads_", 0, 8),
    (r"top_?k|experts_per_tok|topk_group|num_selected|moe_k$", 2, 2),
    (r"n_group|num_groups|expert_groups", 4, 4),
    (r"shared_experts|n_shared", 1, 1),
    (r"experts?$|num_experts|routed_experts", 0, 8),
    (r"layers?$|depth|num_blocks|num_res|stages", 2, 2),
    (r"kernel|conv_size|d_conv|filter_size", 9, 7),
    (
        r"strides?$|dilation|groups$|factor|ratio|expan|reduction|downsample|upsample|levels|points|scale",
        8,
        2,
    ),
    (r"padding|offset", 4, 1),
    (r"patch|window|merge_size|block_size|chunk", 8, 4),
    (r"image_size|img_size|resolution|grid", 0, 32),
    (r"num_channels|in_chans|image_channels", 4, 3),
    (r"type_vocab", 4, 4),
    (r"vocab|num_embeddings|codebook_size|num_embeds", 0, 120),
    (POSITIONS.pattern, 0, 72),
    (r"pad_token|padding_idx|token_id", 3, 1),
    (r"num_labels|num_classes|buckets", 0, 10),
    (r"rank$", 0, 24),
)
_BARE: tuple[tuple[str, int], ...] = (
    (r"kernel", 3),
    (r"stride|dilation|padding|scale|offset", 1),
    (r"groups|heads", 4),
    (r"layers|factor|ratio|num_", 2),
)
"""For parameters without a default."""
SIZED = re.compile(
    r"(?i)^(?!.*(kernel|patch|window|image|batch|merge)).*"
    r"(size|dim|channels|features|embd|d_model|d_ff|width|hidden|intermediate|inner|planes|filters|nf$)"
)
"""Names of widths."""
_LIMITS = re.compile(
    r"vocab|embeddings|position|codebook|classes|labels|buckets|experts|type|max_|levels|n_ctx"
)


@dataclass(frozen=True)
class Draft:
    """One input, by rule.

    Attributes:
        shape: dimension expressions.
        law: of its values.
        high: bound of integers.
    """

    shape: Shape
    law: Law = Law.NORMAL
    high: str = ""


def number_drafts(numbers: Mapping[str, Number | None]) -> Iterator[dict[str, Number]]:
    """Arguments to try, likeliest first.

    Args:
        numbers: parameters with the library's value; ``None`` where there is none.
    """
    first = {name: _number(name, value, numbers) for name, value in numbers.items()}
    yield first
    heads = {n: 8 for n in numbers if re.search(r"(key_value|kv)_?heads", n)}
    if heads:
        yield first | heads
    one = {n: _HIDDEN for n, v in first.items() if v in _LADDER}
    if one:
        yield first | one
    whole = {n: v for n, v in numbers.items() if v is not None}
    if len(whole) == len(numbers) and all(v <= 1024 for v in whole.values()):
        yield whole


def _number(name: str, value: Number | None, numbers: Mapping[str, Number | None]) -> Number:
    if isinstance(value, float):
        return value
    if value is None:
        bare = next((v for pattern, v in _BARE if re.search(pattern, name)), 0)
        return bare or _rung(name, None, numbers)
    found = next(((keep, small) for pattern, keep, small in _TABLE if re.search(pattern, name)), None)
    if found is not None:
        return value if value <= found[0] else found[1]
    return value if abs(value) <= 16 else _rung(name, value, numbers)


def _rung(name: str, value: int | None, numbers: Mapping[str, Number | None]) -> int:
    """Equal defaults get equal numbers; the usual width is the same everywhere."""
    if re.search(r"hidden_size$|d_model|^embed_dim|n_embd|^dim$", name) and not name.startswith("moe"):
        return _HIDDEN
    same = [n for n, v in numbers.items() if v == value] if value is not None else []
    if any(re.search(r"hidden_size$|d_model|^embed_dim|n_embd|^dim$", n) for n in same):
        return _HIDDEN
    others = sorted({v for v in numbers.values() if isinstance(v, int) and v > 16})
    rank = others.index(value) if value is not None else list(numbers).index(name)
    return _LADDER[rank % len(_LADDER)]


# -- inputs -------------------------------------------------------------------------------------


def dimensions(base: Mapping[str, Number], source: str) -> list[str]:
    """Expressions that a last dimension may be, likeliest first."""
    whole = {n: v for n, v in base.items() if isinstance(v, int)}
    sized = [n for n in whole if SIZED.search(n) and not re.search(rf"{HEAD_DIM.pattern}|_layer|eps", n)]
    heads = [n for n in whole if re.search(r"heads?$|nhead|heads_", n) and "kv" not in n and "key_v" not in n]
    head_dims = [n for n in whole if HEAD_DIM.search(n)]
    wide = [f"{h} * {d}" for h in heads[:1] for d in head_dims[:1]]
    deep = [f"{d} // {h}" for d in sized[:1] for h in heads[:1]]
    most = [f"{k} * {d}" for k in (2, 4) for d in sized[:2]]
    fixed = [n for n in dict.fromkeys(re.findall(r"\b[1-9]\d{1,3}\b", source)) if int(n) > 16][:2]
    rest = [n for n in whole if n not in (*sized, *head_dims) and whole[n] > 2]
    return list(dict.fromkeys([*sized, *head_dims, *wide, *deep, *most, *fixed, *rest]))


def input_drafts(
    names: Sequence[str], base: Mapping[str, Number], source: str, *, limit: int
) -> Iterator[tuple[Draft, ...]]:
    """Inputs to try together, likeliest first.

    Args:
        names: of forward's parameters.
        base: arguments of the constructor.
        source: of the class.
        limit: number of combinations.
    """
    dims = dimensions(base, source)
    rows: list[tuple[int, tuple[Draft, ...]]] = [(0, ())]
    for position, name in enumerate(names):
        grown = []
        for cost, before in rows:
            options = (
                _options(name, before, dims, base, source) if position else _first(name, dims, base, source)
            )
            grown += [(cost + extra, (*before, draft)) for extra, draft in enumerate(options)]
        rows = sorted(grown, key=lambda row: row[0])[: 4 * limit]
    yield from itertools.islice((drafts for _, drafts in rows), limit)


def _first(name: str, dims: Sequence[str], base: Mapping[str, Number], source: str) -> list[Draft]:
    special = _by_name(name, None, dims, base)
    found = [Draft(shape) for shape in _float_shapes(name, dims, source)]
    return special + found


def _float_shapes(name: str, dims: Sequence[str], source: str) -> list[Shape]:
    every = [*dims, "features"]
    line = [("batch", "length", d) for d in every]
    plane = [("batch", d, "height", "width") for d in every]
    square = [("batch", d, "height", "height") for d in every]
    row = [("batch", d) for d in every]
    channels = [("batch", d, "length") for d in every]
    last = [("batch", "height", "width", d) for d in every]
    heads = [("batch", h, "length", d) for h in dims if "head" in h for d in dims if "dim" in d]
    other: list[Shape] = [("length", d) for d in every]
    if (
        re.search(r"Conv2d|BatchNorm2d|[pP]ool2d|PixelShuffle|interpolate|conv2d", source)
        or name == "pixel_values"
    ):
        images = [("batch", d, s, s) for d in dims for s in dims if "image" in s]
        return [*images, *plane, *line, *square, *last, *row]
    if re.search(r"Conv1d|conv1d|BatchNorm1d|[pP]ool1d", source):
        return [*channels[:-1], *line, *row, *plane]
    if re.search(r"Conv3d|permute\(0, 2, 3, 1\)|, height, width", source):
        return [*plane, *last, *line, *square, *row]
    return [*line, *row[:-1], *last, *plane, *heads, *channels, *square, *other, ("batch", "features")]


def _options(
    name: str, before: Sequence[Draft], dims: Sequence[str], base: Mapping[str, Number], source: str
) -> list[Draft]:
    """An input after the first."""
    shape = before[0].shape
    found = _by_name(name, shape, dims, base)
    same = [d for d in before if d.law is Law.NORMAL]
    found += [Draft(d.shape) for d in same[-1:] + same[:1]]
    if len(shape) >= 2:
        found += [Draft((*shape[:-1], d)) for d in dims[:5]]
        found += [Draft((shape[0], "other_length", d)) for d in (shape[-1], *dims[:3])]
        found += [Draft((shape[0], d)) for d in dims[:3]]
        found += [Draft((shape[0], d, *shape[2:])) for d in dims[:3]]
        found += [Draft(shape[:2]), Draft(shape[:-1])]
    found += [Draft(s) for s in _float_shapes(name, dims[:3], source)[:6]]
    return list(dict.fromkeys(found))


def _by_name(name: str, first: Shape | None, dims: Sequence[str], base: Mapping[str, Number]) -> list[Draft]:
    """What a name says of an input."""
    rows: Shape = (first[0], first[1]) if first is not None and len(first) >= 2 else ("batch", "length")
    if re.search(r"^(cos|sin)|(cos|sin)$|freqs|_pe$|rotary", name):
        return _rotary(rows, dims)
    if re.search(r"mask", name):
        whole = (rows[0], "1", rows[1], rows[1])
        shapes: list[Shape] = [whole, rows, (rows[1], rows[1]), (*rows, rows[1]), (*rows, "1")]
        return [Draft(s, law) for law in (Law.NORMAL, Law.BOOL) for s in shapes]
    if re.search(r"ids$|tokens$|indices|index$|labels|positions?$|input$|codes|bbox|idx|tgt_len", name):
        highs = [n for n in base if _LIMITS.search(n) and isinstance(base[n], int)] or ["length"]
        k = [d for d in base if re.search(r"top_?k|per_tok", d)]
        shapes = [
            *([(rows[0], d) for d in k]),
            rows,
            (*rows, "4") if name == "bbox" else ("length",),
            ("batch",),
        ]
        return [Draft(s, Law.INTEGERS, h) for s in shapes for h in highs[:3]]
    return []


def _rotary(rows: Shape, dims: Sequence[str]) -> list[Draft]:
    widths = [d for d in dims if HEAD_DIM.search(d) or "//" in d] or list(dims[:2])
    every = [*widths, *(f"({d}) // 2" if " " in d else f"{d} // 2" for d in widths)]
    return [Draft(shape) for w in every for shape in ((*rows, w), (rows[1], w), (rows[0], "1", rows[1], w))]
