"""Duplicates inside a set: equal sources, equal graphs, and sources that share nearly all of their wording.

Small sets are compared pair by pair, exactly; large ones by MinHash and locality-sensitive hashing
(datasketch), whose candidates are then compared exactly, so that both ways drop the same pairs up to the
hash's misses (a pair at the threshold is found with a probability of about one half, at 0.95 nearly always).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from cuda_agent.errors import UsageError

THRESHOLD = 0.9
"""Jaccard similarity of two sources' shingles from which they count as one."""
EXACT_UP_TO = 1500
"""Sets up to this many tasks are compared pair by pair."""
_WIDTH = 4
_PERMUTATIONS = 128


def shingles(code: str) -> frozenset[int]:
    """Runs of four tokens of the syntax tree, names of local variables and docstrings left out.

    Operators, arguments and numbers stay: a task with another kernel size or another activation differs.
    """
    tokens = list(_tokens(ast.parse(code)))
    runs = {tuple(tokens[i : i + _WIDTH]) for i in range(max(1, len(tokens) - _WIDTH + 1))}
    return frozenset(_hash(run) for run in runs)


def _tokens(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return
    yield type(node).__name__
    match node:
        case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.FunctionDef(name=name):
            yield name
        case ast.Constant(value=value):
            yield repr(value)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _tokens(child)


def _hash(run: tuple[str, ...]) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(run).encode(), digest_size=8).digest(), "little")


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Share of what either has that both have."""
    return len(a & b) / len(a | b) if a or b else 1.0


def near_pairs(sets: Sequence[frozenset[int]], *, threshold: float = THRESHOLD) -> list[tuple[int, int]]:
    """Pairs (earlier, later) of sets at or above the threshold.

    Raises:
        UsageError: the set is large and datasketch is missing.
    """
    candidates = combinations(range(len(sets)), 2) if len(sets) <= EXACT_UP_TO else _hashed(sets, threshold)
    return [(i, j) for i, j in candidates if _may_reach(sets[i], sets[j], threshold)]


def _may_reach(a: frozenset[int], b: frozenset[int], threshold: float) -> bool:
    few, many = sorted((len(a), len(b)))
    return few >= threshold * many and jaccard(a, b) >= threshold


def _hashed(sets: Sequence[frozenset[int]], threshold: float) -> Iterator[tuple[int, int]]:
    index = lsh(threshold)
    for later, items in enumerate(sets):
        sketch = minhash(items)
        for earlier in index.query(sketch):
            yield int(earlier), later
        index.insert(later, sketch)


def lsh(threshold: float = THRESHOLD) -> Any:
    """An index of sketches; two workers' indices of the same parameters can be merged by their bands.

    Raises:
        UsageError: datasketch is missing.
    """
    return _datasketch().MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS)


def minhash(items: frozenset[int]) -> Any:
    """The sketch of a set of shingles; mergeable, 128 permutations, the same on every machine.

    Raises:
        UsageError: datasketch is missing.
    """
    sketch = _datasketch().MinHash(num_perm=_PERMUTATIONS, seed=1)
    sketch.update_batch([item.to_bytes(8, "little") for item in items])
    return sketch


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError:
        raise UsageError(
            f"sets of more than {EXACT_UP_TO} tasks need datasketch",
            "Install it: pip install 'cuda-agent[synth]'.",
        ) from None
    return datasketch
