"""The scale of a task: module-level size constants, rewritten in place.

A task says its sizes once, as plain assignments of whole numbers at module level (``batch_size = 64``).
The shipped form is for one large device; its record lists a small value of each constant beside it, for
CPUs and small cards. Nothing is run here: the source's text is edited, comments and layout stay.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from cuda_agent.errors import TaskError


def size_constants(code: str) -> dict[str, int]:
    """Whole numbers assigned at module level, by name, in order of the source.

    Raises:
        TaskError: the source does not parse.
    """
    return {name: value for name, (value, _) in _assignments(code).items()}


def with_sizes(code: str, sizes: Mapping[str, int]) -> str:
    """The source with constants replaced.

    Args:
        code: a task's source.
        sizes: new values, by name.

    Raises:
        TaskError: the source does not parse, or has no such constant.
    """
    found = _assignments(code)
    if missing := sizes.keys() - found.keys():
        raise TaskError(f"the task has no size constant {', '.join(sorted(missing))}")
    lines = code.splitlines(keepends=True)
    for name, value in sizes.items():
        node = found[name][1]
        line = lines[node.lineno - 1].encode()
        end = line[node.end_col_offset :] if node.end_col_offset is not None else b""
        lines[node.lineno - 1] = (line[: node.col_offset] + str(value).encode() + end).decode()
    return "".join(lines)


def _assignments(code: str) -> dict[str, tuple[int, ast.Constant]]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise TaskError(f"line {error.lineno}: {error.msg}", "Correct the Python source.") from None
    found: dict[str, tuple[int, ast.Constant]] = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Constant(value=int() as value) as constant
            ):
                if not isinstance(value, bool):
                    found[name] = (value, constant)
            case _:
                pass
    return found
