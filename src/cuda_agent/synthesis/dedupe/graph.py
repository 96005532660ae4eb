"""A task's normalised graph, from one traced forward: what makes two tasks the same whatever their spelling.

A row for each dispatched operator that the outputs need, in the order of execution:
``[name, [[kind, ...], ...], [[argument, value], ...], [[rank, dtype], ...], [elements, ...]]``. Operators
that move no value (views, copies to the same type) are passed through, so that ``view``, ``reshape`` and
``flatten`` are one; in-place operators become plain ones; sizes stay out, ranks stay in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from cuda_agent.synthesis.words import words

if TYPE_CHECKING:
    from cuda_agent.synthesis.filters.tracing import Op, Ref, Trace

_PASSED = words(
    """
    view _unsafe_view reshape _reshape_alias expand detach alias clone contiguous unsqueeze squeeze
    lift_fresh lift_fresh_copy slice_copy empty zeros_like ones_like copy
    """
)
_SAME = {"_softmax": "softmax", "_log_softmax": "log_softmax", "clamp_min": "clamp", "clamp_max": "clamp"}
_FLOAT = ("float16", "bfloat16", "float32", "float64")

Row = list[Any]


def rows_of(trace: Trace) -> list[Row]:
    """The normalised graph of a trace, as JSON types."""
    needed = trace.needed()
    place: dict[int, Any] = {}
    rows: list[Row] = []
    for index, op in enumerate(trace.ops):
        if index not in needed:
            continue
        reads = [_where(ref, place) for ref in op.reads]
        if _moves_nothing(op) and reads:
            place[index] = reads[0]
            continue
        place[index] = ["op", len(rows)]
        rows.append(
            [
                _name(op),
                reads,
                [list(pair) for pair in op.hyper],
                [[len(shape), _dtype(dtype)] for shape, dtype in op.outputs],
                [prod(shape) for shape, _ in op.outputs],
            ]
        )
    return rows


def _where(ref: Ref, place: dict[int, Any]) -> list[Any]:
    kind, what = ref
    if kind == "op":
        return list(place.get(what, ["const"]))
    return [kind, what] if kind == "input" else [kind]


def _moves_nothing(op: Op) -> bool:
    name = op.name.removeprefix("aten.")
    return name in _PASSED or (name == "_to_copy" and ("dtype", "None") in op.hyper)


def _name(op: Op) -> str:
    """In-place and out-of-place are one; so are the backends' spellings of softmax and clamp."""
    name = op.name.removeprefix("aten.")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return _SAME.get(name, name)


def _dtype(name: str) -> str:
    return "float" if name in _FLOAT else name


def graph_key(rows: Sequence[Row]) -> str:
    """Equal for tasks with the same operators, edges, hyper-parameters and ranks; sizes do not count."""
    return _digest([[name, reads, hyper, outputs] for name, reads, hyper, outputs, _ in rows])


def cluster_key(rows: Sequence[Row]) -> str:
    """Equal for tasks with the same operators and edges: no sizes, ranks or hyper-parameters."""
    return _digest(
        [[name, [read[:1] if read[0] != "op" else read for read in reads]] for name, reads, *_ in rows]
    )


def signature_key(rows: Sequence[Row]) -> str:
    """Equal for tasks with the same operators and hyper-parameters, in whatever order and wiring."""
    return _digest(sorted([name, hyper, outputs] for name, _, hyper, outputs, _ in rows))


def num_computing(rows: Sequence[Row]) -> int:
    """Operators that compute; moves of elements are none."""
    return sum(name not in _MOVES for name, *_ in rows)


def largest(rows: Sequence[Row]) -> int:
    """Elements of the largest tensor that the graph makes."""
    return max((count for *_, counts in rows for count in counts), default=0)


_MOVES = words(
    """
    permute transpose t _to_copy cat select slice split split_with_sizes unbind flip roll index_select
    index gather constant_pad_nd
    """
)


def _digest(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
