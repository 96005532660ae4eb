"""A copy of a task with its leading sizes cut, so that large tasks can be looked at on a small machine.

Works on the source: size constants of the module (``batch_size = 128``) are rewritten; nothing is run. What
is cut is the number of rows, never what one row needs, as far as names and use tell:

1. constants called ``batch_size``, ``batch``, ``bs`` or ``num_batches``;
2. where there is none, the leading size of the first tensor in ``get_inputs``, unless it is another
   tensor's inner size or goes into the model;
3. where that is not possible either (square matrices), every size of ``get_inputs`` above 4096, to 4096.

A shrunk task is another task, with another hash: what holds for it need not hold for the original where
the batch matters (statistics over the batch, losses that average).
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping

from cuda_agent.errors import TaskError
from cuda_agent.task import Task

_BATCH = re.compile(r"(?i)(batch(_?size)?|bs|num_batches)$")
_MAX_SQUARE = 4096
_MAKERS = frozenset({"rand", "randn", "randint", "zeros", "ones", "empty", "full", "randperm"})


@dataclasses.dataclass(frozen=True)
class Shrunk:
    """A task with sizes cut.

    Attributes:
        task: the copy; the original where nothing could be cut.
        sizes: what was cut: (before, after) by constant.
    """

    task: Task
    sizes: Mapping[str, tuple[int, int]]


def shrink_batch(task: Task, batch: int) -> Shrunk:
    """Cut the leading sizes of a task's inputs to at most ``batch``.

    Raises:
        TaskError: the source does not parse.
        ValueError: ``batch`` is not positive.
    """
    if batch < 1:
        raise ValueError("batch must be at least 1")
    try:
        tree = ast.parse(task.code)
    except SyntaxError as error:
        raise TaskError(f"task {task.name}: {error.msg}", "Correct the Python source.") from None
    constants = _constants(tree)
    wanted = _choose(tree, constants, batch)
    sizes = {name: (constants[name][1], new) for name, new in wanted.items() if new < constants[name][1]}
    if not sizes:
        return Shrunk(task, {})
    code = _rewritten(task.code, {constants[name][0]: new for name, (_, new) in sizes.items()})
    return Shrunk(dataclasses.replace(task, code=code), sizes)


def _choose(tree: ast.Module, constants: Mapping[str, tuple[ast.expr, int]], batch: int) -> dict[str, int]:
    """New sizes by constant."""
    if named := [name for name in constants if _BATCH.match(name)]:
        return dict.fromkeys(named, batch)
    shapes = list(_shapes(_function(tree, "get_inputs")))
    if not shapes:
        return {}
    leading = {n for n in _names(shapes[0][0]) if n in constants}
    inner = {name for shape in shapes for size in shape[1:] for name in _names(size)}
    model = set(_names(_function(tree, "get_init_inputs")))
    if free := leading - inner - model:
        return dict.fromkeys(free, batch)
    used = {name for shape in shapes for size in shape for name in _names(size) if name in constants}
    return dict.fromkeys(used - model, _MAX_SQUARE)


def _constants(tree: ast.Module) -> dict[str, tuple[ast.expr, int]]:
    """Integer constants of the module: the expression assigned, and its value."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _value(node.value)
            if value is not None:
                found[node.targets[0].id] = (node.value, value)
    return found


def _value(node: ast.expr) -> int | None:
    """An integer, or a product, sum or power of integers."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Add):
        return left + right
    return left**right if isinstance(node.op, ast.Pow) and 0 <= right < 64 else None


def _function(tree: ast.Module, name: str) -> ast.AST:
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return next(found, ast.Module(body=[], type_ignores=[]))


def _shapes(node: ast.AST) -> Iterator[list[ast.expr]]:
    """Sizes given to each call that makes a tensor, in source order."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    for call in sorted(calls, key=lambda n: (n.lineno, n.col_offset)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _MAKERS:
            shape = next((a for a in call.args if isinstance(a, ast.Tuple | ast.List)), None)
            sizes = list(shape.elts) if shape is not None else list(call.args)
            if sizes:
                yield sizes


def _names(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _rewritten(code: str, new: Mapping[ast.expr, int]) -> str:
    """The source with expressions replaced in place; comments and layout stay."""
    lines = code.encode().splitlines(keepends=True)  # column offsets count bytes
    for node in sorted(new, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first][: node.col_offset]
        tail = lines[last][node.end_col_offset :]
        lines[first : last + 1] = [head + str(new[node]).encode() + tail]
    return b"".join(lines).decode()
