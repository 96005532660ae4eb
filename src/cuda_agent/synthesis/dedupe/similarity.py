"""Similarity of two programs by the shapes of their syntax trees: the paper's decontamination measure.

The paper (arXiv 2602.24286, section on data) drops a training task whose ``PythonASTSimilarity`` with any
evaluation task exceeds 0.9. That measure, as its documentation describes it: take the statements that carry
structure (classes, functions, imports, branches, loops, comprehensions, returns); match those of one program
with those of the other one to one so that most nodes agree; nodes agree by type alone, under parents with
equally many children, in whatever order of the children is best; similarity is twice the weight of what
agrees over the weight of both. Names, numbers and strings do not count: ``relu(x)`` and ``gelu(x)`` are
alike.

Written from that description; the assignment is solved exactly (Kuhn 1955, Munkres 1957).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

THRESHOLD = 0.9
"""Above this similarity a task is dropped (the paper's value)."""

_WEIGHTS: dict[type[ast.AST], float] = {
    ast.Import: 0.3,
    ast.FunctionDef: 1.2,
    ast.If: 0.5,
    ast.ClassDef: 1.0,
    ast.While: 1.0,
    ast.For: 1.0,
    ast.comprehension: 1.0,
    ast.Return: 1.0,
}


@dataclass(frozen=True, eq=False)
class Tree:
    """A syntax tree by types alone; equal trees are one object, so that comparison is by identity."""

    kind: str
    children: tuple[Tree, ...]
    size: int = field(compare=False)


_INTERNED: dict[tuple[str, tuple[int, ...]], Tree] = {}


def model_class(code: str) -> ast.ClassDef | None:
    """The class ``Model`` of a source; ``None`` where it has none or does not parse."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    return next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)


def shape_of(node: ast.AST) -> Tree:
    """The tree of types below a node."""
    children = tuple(shape_of(child) for child in ast.iter_child_nodes(node))
    key = (type(node).__name__, tuple(id(child) for child in children))
    if key not in _INTERNED:
        _INTERNED[key] = Tree(key[0], children, 1 + sum(child.size for child in children))
    return _INTERNED[key]


def parts_of(node: ast.AST) -> tuple[tuple[Tree, float], ...]:
    """The structural statements at and below a node, each with its weight for one tree node."""
    return tuple((shape_of(n), _WEIGHTS[type(n)]) for n in ast.walk(node) if type(n) in _WEIGHTS)


def similarity(a: Sequence[tuple[Tree, float]], b: Sequence[tuple[Tree, float]]) -> float:
    """Similarity of two programs given by :func:`parts_of`: 0 (nothing agrees) to 1 (all types agree)."""
    total = sum(tree.size * weight for tree, weight in (*a, *b))
    if not total:
        return 0.0
    matches = [[_matching(x, y) for y, _ in b] for x, _ in a]
    pairs = assign(matches)
    agreed = sum(matches[i][j] * (a[i][1] + b[j][1]) / 2 for i, j in pairs)
    return 2 * agreed / total


def source_similarity(code: str, other: str) -> float:
    """Similarity of the ``Model`` classes of two sources; 0 where one has none."""
    first, second = model_class(code), model_class(other)
    if first is None or second is None:
        return 0.0
    return similarity(parts_of(first), parts_of(second))


def upper_bound(a: Sequence[tuple[Tree, float]], b: Sequence[tuple[Tree, float]]) -> float:
    """No less than :func:`similarity`, at the price of a sum: what need not be compared closely."""
    ours, theirs = (sum(tree.size * weight for tree, weight in parts) for parts in (a, b))
    return 2 * min(ours, theirs) / (ours + theirs) if ours + theirs else 0.0


@lru_cache(maxsize=1 << 20)
def _matching(a: Tree, b: Tree) -> int:
    """Nodes that agree in the best matching of two trees whose roots are laid on each other."""
    if a is b:
        return a.size
    if a.kind != b.kind or len(a.children) != len(b.children):
        return 0
    values = [[_matching(x, y) for y in b.children] for x in a.children]
    return 1 + sum(values[i][j] for i, j in assign(values))


def assign(values: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs (row, column), each used once, with the largest sum of values.

    Args:
        values: a matrix of non-negative numbers, rows x columns, of any shape.
    """
    if not values or not values[0]:
        return []
    if len(values) == 1:
        row = values[0]
        return [(0, max(range(len(row)), key=row.__getitem__))]
    if len(values) > len(values[0]):
        flipped = [list(column) for column in zip(*values, strict=True)]
        return [(i, j) for j, i in assign(flipped)]
    return _shortest_augmenting_paths([[-value for value in row] for row in values])


def _shortest_augmenting_paths(costs: list[list[float]]) -> list[tuple[int, int]]:
    """Least-cost assignment of each row to a column (no more rows than columns)."""
    num_rows, num_columns = len(costs), len(costs[0])
    row_price = [0.0] * num_rows
    column_price = [0.0] * (num_columns + 1)
    owner = [-1] * (num_columns + 1)  # the last column stands for "the row being placed"
    for row in range(num_rows):
        owner[num_columns] = row
        column, came_from = _reach_free_column(costs, row_price, column_price, owner)
        while column != num_columns:
            owner[column] = owner[came_from[column]]
            column = came_from[column]
    return [(owner[column], column) for column in range(num_columns) if owner[column] >= 0]


def _reach_free_column(
    costs: list[list[float]], row_price: list[float], column_price: list[float], owner: list[int]
) -> tuple[int, list[int]]:
    """A Dijkstra search from the row at the virtual column; prices are updated on the way."""
    num_columns = len(costs[0])
    distance = [float("inf")] * num_columns
    came_from = [num_columns] * num_columns
    done: set[int] = set()
    column = num_columns
    while owner[column] >= 0:
        done.add(column)
        row = owner[column]
        for other in range(num_columns):
            reduced = costs[row][other] - row_price[row] - column_price[other]
            if other not in done and reduced < distance[other]:
                distance[other], came_from[other] = reduced, column
        nearest = min((c for c in range(num_columns) if c not in done), key=distance.__getitem__)
        step = distance[nearest]
        for other in done:
            row_price[owner[other]] += step
            column_price[other] -= step
        distance = [d - step if c not in done else d for c, d in enumerate(distance)]
        column = nearest
    return column, came_from
