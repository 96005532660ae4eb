"""Dimension expressions: whole numbers, size names, ``+ - * //``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
}


def evaluated(expression: str, sizes: Mapping[str, int]) -> int:
    """The value of an expression.

    Raises:
        KeyError: a name is no size.
        ValueError: the text is no such expression.
    """
    return _value(_parsed(expression), sizes)


def names_in(expression: str) -> set[str]:
    """Size names that an expression mentions."""
    return {node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)}


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError:
        raise ValueError(f"{expression!r} is no dimension") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return int(value)
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no dimension")
