"""The starting ``model_new.py``: the reference's constructor, and a forward still to be written."""

from __future__ import annotations

import ast
import re

from cuda_agent.workspace.snapshot import MODEL_FILE

_NOT_COPIED = ("get_inputs", "get_init_inputs", "CASE_WEIGHTS")
_TWO_BLANK_LINES = "\n\n\n"
_BLANK_RUN = re.compile(r"\n(?:[ \t]*\n){3,}")
_HEADER = f'''"""{MODEL_FILE}: the candidate. Write kernels/, then call them from ModelNew.forward."""
'''
_ADVICE = """        # Allocate (torch.empty and the like), take views, call cuda_extension: nothing else.
        # Once `bash utils/compile.sh` has built kernels/:
        #     import cuda_extension  (at the top of this file)
        #     return cuda_extension.my_kernel_forward(...)
        raise NotImplementedError("write the kernels, then call cuda_extension here")
"""
_FALLBACK = f"""{_HEADER}
import torch
from torch import nn


class ModelNew(nn.Module):
    # Same constructor arguments and state_dict (names, shapes, dtypes) as Model in model.py.
    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, *inputs):
{_ADVICE}"""


def starter(code: str) -> str:
    """A ``model_new.py`` for a task's source.

    Imports, constants and helpers are kept, ``Model`` becomes ``ModelNew`` with the same constructor,
    and the body of ``forward`` is left open. Where the source has no plain ``Model`` class with a
    ``forward``, a bare class is returned.
    """
    tree = ast.parse(code)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None or _method(model, "forward") is None:
        return _FALLBACK
    lines: list[str | None] = list(code.splitlines())
    for node in tree.body:
        if _is_left_out(node):
            _replace(lines, node, None)
    _replace(lines, model, _class(code.splitlines(), model))
    kept = "\n".join(line for line in lines if line is not None).strip()
    text = f"{_HEADER}\n{_BLANK_RUN.sub(_TWO_BLANK_LINES, kept)}\n"
    return text if _parses(text) else _FALLBACK


def _is_left_out(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name in _NOT_COPIED
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id in _NOT_COPIED for t in node.targets)
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_main = isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
    return is_docstring or is_main


def _class(lines: list[str], model: ast.ClassDef) -> str:
    """``Model`` as ``ModelNew``: every member but ``forward`` as it is."""
    bases = ", ".join(ast.unparse(base) for base in model.bases)
    parts = [f"class ModelNew({bases}):"]
    for node in model.body:
        if node is _method(model, "forward"):
            continue
        source = _source(lines, node).replace("super(Model,", "super(ModelNew,")
        parts.append(source + ("\n" if isinstance(node, ast.FunctionDef) else ""))
    forward = _method(model, "forward")
    assert forward is not None
    parts.append(f"    def forward({ast.unparse(forward.args)}):\n{_ADVICE.rstrip()}")
    return "\n".join(parts)


def _method(model: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _source(lines: list[str], node: ast.stmt) -> str:
    """The statement's own lines, decorators and all."""
    first, last = _span(node)
    return "\n".join(lines[first:last])


def _span(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)]) - 1, node.end_lineno or node.lineno


def _replace(lines: list[str | None], node: ast.stmt, text: str | None) -> None:
    first, last = _span(node)
    lines[first:last] = [text, *[None] * (last - first - 1)]


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
