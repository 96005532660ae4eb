"""Python source of ``model_new.py``: the module's own constructor, and a forward that calls the kernels."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.agent.playbook.graph import StateEntry
from cuda_agent.agent.playbook.ir import Unsupported

HARNESS_NAMES = frozenset({"get_inputs", "get_init_inputs", "CASE_WEIGHTS"})
# A constructor that reads files cannot be reused: a candidate has none beside it.
READS_FILES = frozenset({"open", "load", "load_file", "from_pretrained", "__file__", "load_state_dict"})


@dataclass(frozen=True)
class Skeleton:
    """What ``model_new.py`` keeps of the reference.

    Attributes:
        head: source of imports and helpers.
        body: source of the class body without forward.
        signature: parameters of forward, as source, ``self`` first.
        positional: expressions of the positional arguments; ``rest`` names ``*args`` where there is one.
        defaults: arguments that may be left out, with their default as source.
        owns_attributes: plain tensor attributes of the reference exist here too.
    """

    head: str
    body: str
    signature: str
    positional: tuple[str, ...]
    rest: str
    defaults: tuple[tuple[str, str], ...]
    owns_attributes: bool

    def argument(self, path: Sequence[Any]) -> str:
        """Expression of an input inside forward, given its path in the flattened arguments."""
        first, keys = path[0], path[1:]
        if isinstance(first, str):
            text = first
        elif first < len(self.positional):
            text = self.positional[first]
        elif self.rest:
            text = f"{self.rest}[{first - len(self.positional)}]"
        else:
            raise Unsupported(f"forward takes no argument {first}")
        return text + "".join(f"[{k!r}]" for k in keys)


def skeleton(source: str, state: Sequence[StateEntry]) -> Skeleton:
    """Reuse the reference's own constructor where it is self-contained, else register by name."""
    tree = ast.parse(source)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        return _by_name(state, None)
    forward = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    kept_class = _stripped(model)
    helpers = _helpers(tree, kept_class)
    used = {name for node in (*helpers, kept_class) for name in _names(node)}
    if forward is None or used & READS_FILES:
        return _by_name(state, forward)
    rename = _Rename()
    head = "\n".join(ast.unparse(rename.visit(n)) for n in helpers)
    body = "\n".join(ast.unparse(rename.visit(n)) for n in kept_class.body)
    return Skeleton(head, body, *_signature(forward), owns_attributes=True)


Signature = tuple[str, tuple[str, ...], str, tuple[tuple[str, str], ...]]


def _signature(forward: ast.FunctionDef) -> Signature:
    arguments = forward.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    rest = arguments.vararg.arg if arguments.vararg else ""
    given = list(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
    keywords = [a.arg for a in arguments.kwonlyargs]
    given += [(n, d) for n, d in zip(keywords, arguments.kw_defaults, strict=True) if d is not None]
    defaults = tuple((name, ast.unparse(value)) for name, value in given)
    return ast.unparse(arguments), tuple(names[1:]), rest, defaults


class _Rename(ast.NodeTransformer):
    """The class is called ModelNew, also where its own code names it."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name("ModelNew", node.ctx), node) if node.id == "Model" else node


def _names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return names | {
        word
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
        for word in [n.value]
        if word.isidentifier()
    }


def _stripped(model: ast.ClassDef) -> ast.ClassDef:
    """The class without forward and without the methods that only forward calls."""
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    wanted: set[str] = set()
    frontier = ["__init__"]
    while frontier:
        name = frontier.pop()
        if name in methods and name not in wanted and name != "forward":
            wanted.add(name)
            frontier.extend(_names(methods[name]))
    kept = [n for n in model.body if not isinstance(n, ast.FunctionDef) or n.name in wanted]
    if kept and isinstance(kept[0], ast.Expr) and isinstance(kept[0].value, ast.Constant):
        kept = kept[1:]
    return ast.ClassDef("ModelNew", model.bases, model.keywords, kept, [], **_extra(model))


def _extra(model: ast.ClassDef) -> dict[str, Any]:
    return {"type_params": getattr(model, "type_params", [])} if hasattr(model, "type_params") else {}


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {a.asname or a.name.split(".")[0] for a in node.names}
    if isinstance(node, ast.If | ast.Try):
        return {name for child in node.body for name in _defines(child)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _helpers(tree: ast.Module, model: ast.ClassDef) -> list[ast.stmt]:
    """Top-level statements that the class needs, in order."""
    statements = [
        n
        for n in tree.body
        if not (isinstance(n, ast.ClassDef) and n.name == "Model")
        and not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        and not _defines(n) & HARNESS_NAMES
    ]
    wanted = _names(model)
    chosen: set[int] = set()
    grew = True
    while grew:
        grew = False
        for index, node in enumerate(statements):
            needed = _defines(node) & wanted or _is_future(node)
            if index not in chosen and needed:
                chosen.add(index)
                wanted |= _names(node)
                grew = True
    return [_without_forward(n) for k, n in enumerate(statements) if k in chosen]


def bound_names(head: str) -> set[str]:
    """Names that top-level statements of a source bind."""
    return {name for node in ast.parse(head).body for name in _defines(node)}


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _without_forward(node: ast.stmt) -> ast.stmt:
    """A submodule class only holds weights here: its forward never runs."""
    if isinstance(node, ast.ClassDef) and node.bases:
        node.body = [
            n for n in node.body if not (isinstance(n, ast.FunctionDef) and n.name == "forward")
        ] or [ast.Pass()]
    return node


_BY_NAME = '''STATE = (
{entries}
)
"""(kind, state_dict key, shape, dtype, persistent) of every parameter and buffer of the reference."""
'''
_REGISTER = """def __init__(self, *args, **kwargs):
    super().__init__()
    for kind, name, shape, dtype, persistent in STATE:
        owner = self
        *path, leaf = name.split(".")
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]
        if kind == "param":
            owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))
        else:
            owner.register_buffer(leaf, torch.zeros(shape, dtype=dtype), persistent=persistent)"""


def _by_name(state: Sequence[StateEntry], forward: ast.FunctionDef | None) -> Skeleton:
    lost = [e.name for e in state if not e.persistent]
    if lost:
        raise Unsupported(f"the constructor cannot be reused and buffer {lost[0]} is not in the state_dict")
    entries = "\n".join(
        f"    ({e.kind!r}, {e.name!r}, {e.shape!r}, torch.{e.dtype}, {e.persistent})," for e in state
    )
    head = _BY_NAME.format(entries=entries) if state else "STATE = ()\n"
    signature: Signature = ("self, *args", (), "args", ())
    if forward is not None:
        signature = _signature(forward)
    return Skeleton(head, _REGISTER, *signature, owns_attributes=False)
