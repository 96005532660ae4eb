"""Names in functions: what is local, what comes from torch, which parameters there are."""

from __future__ import annotations

import ast
import re

from cuda_agent.synthesis.mine.modelling.walk import Unfit

LAYER = re.compile(
    r"^(layer_idx|layer_id|layer_index|layer_number|layer_num|block_idx|stage_idx|idx|layer_i)$"
)
"""Parameters that say which layer a module is: always the first here."""
_SHORT = (("torch.nn.functional.", "F."), ("torch.nn.", "nn."))
_WHOLE = {
    "torch": "torch",
    "torch.nn": "nn",
    "torch.nn.functional": "F",
    "math": "math",
    "transformers.initialization": "nn.init",
    "transformers.activations.ACT2FN": "ACT2FN",
}


def parameters(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """Parameters with their defaults, ``self`` aside."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = list(zip(positional, [*defaults, *arguments.defaults], strict=True))
    pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return pairs[1:] if pairs and pairs[0][0].arg == "self" else pairs


def pairs_of(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Targets and values of an assignment, ``a, b = c, d`` taken apart."""
    match node.targets[0], node.value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
        case target, value:
            return [(target, value)]


def local_names(function: ast.FunctionDef) -> set[str]:
    """Parameters and names that the function stores to."""
    return {
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(function)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }


def torch_name(dotted: str, name: str) -> ast.expr:
    """An imported name as a seed spells it.

    Raises:
        Unfit: it is neither torch's nor of ``math``.
    """
    text = _WHOLE.get(dotted)
    if text is None and dotted.startswith("torch."):
        text = next(
            (short + dotted[len(full) :] for full, short in _SHORT if dotted.startswith(full)), dotted
        )
    if text is None:
        raise Unfit(f"needs {name} of {dotted.rpartition('.')[0]}")
    return ast.parse(text, mode="eval").body
