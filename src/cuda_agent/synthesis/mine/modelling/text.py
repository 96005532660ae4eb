"""The finished source of a specialised class: what is never read goes, the rest is written."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from cuda_agent.synthesis.mine.modelling.names import parameters
from cuda_agent.synthesis.mine.modelling.state import Build, ClassState
from cuda_agent.synthesis.mine.modelling.values import is_number
from cuda_agent.synthesis.mine.modelling.walk import Unfit

MAX_LINES = 80
MAX_CHARACTERS = 3000
_WEIGHTS = re.compile(
    r"attn_w|attn_p|attention_p|attention_w|attentions|past|cache|attn_scores|attn_map|bias_mask|position_bias"
)
_PAIR = "position_embeddings"


@dataclass(frozen=True)
class Written:
    """A class as text.

    Attributes:
        source: imports, helpers, the class.
        class_name: of the class.
        numbers: parameters of its constructor with the value that they have in the library, or ``None``.
        inputs: parameters of forward that must be given.
    """

    source: str
    class_name: str
    numbers: dict[str, int | float | None]
    inputs: tuple[str, ...]


def written(build: Build) -> Written:
    """Clean up and write.

    Raises:
        Unfit: it is too long, or takes nothing.
    """
    top = build.classes[0]
    forward = top.methods["forward"]
    _split_pair(forward)
    _shorten_returns(forward)
    _drop_type_only(forward)
    _sweep(build, top)
    numbers = _signature(top)
    source = _source(build, top)
    if source.count("\n") > MAX_LINES or len(source) > MAX_CHARACTERS:
        raise Unfit("longer than an operator")
    inputs = tuple(a.arg for a, default in parameters(forward) if default is None)
    if not inputs:
        raise Unfit("takes no tensor")
    return Written(source, top.name, numbers, inputs)


# -- forward ------------------------------------------------------------------------------------


def _split_pair(forward: ast.FunctionDef) -> None:
    """A pair of tensors becomes two inputs."""
    index = next((i for i, a in enumerate(forward.args.args) if a.arg == _PAIR), None)
    if index is None:
        return
    names = ["cos", "sin"]
    loads = [n for n in ast.walk(forward) if isinstance(n, ast.Name) and n.id == _PAIR]
    unpacked = None
    for statement in forward.body:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=a), ast.Name(id=b)])], value=ast.Name(id=n)):
                if n == _PAIR and len(loads) == 1:
                    names, unpacked = [a, b], statement
            case _:
                pass
    if unpacked is not None:
        forward.body.remove(unpacked)
    else:
        forward.body.insert(0, ast.parse(f"{_PAIR} = (cos, sin)").body[0])
    forward.args.args[index : index + 1] = [ast.arg(name) for name in names]


def _shorten_returns(forward: ast.FunctionDef) -> None:
    """Of several results, attention weights, caches and what is None are left out."""
    for node in ast.walk(forward):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            left = [e for e in node.value.elts if not _is_aside(e)]
            node.value = left[0] if len(left) == 1 else ast.Tuple(left, ast.Load())


def _is_aside(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    return isinstance(node, ast.Name) and bool(_WEIGHTS.search(node.id))


class _TypeOnly(ast.NodeTransformer):
    """Takes a tensor out that is asked for nothing but its type and device."""

    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other

    def visit_Call(self, node: ast.Call) -> Any:
        text = f"{self.name}.dtype"
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "type"):
            node.args = [a for a in node.args if ast.unparse(a) != text]
            node.keywords = [k for k in node.keywords if ast.unparse(k.value) != text]
            if not node.args and not node.keywords:
                return self.visit(node.func.value)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.other, node.ctx) if node.id == self.name else node


def _drop_type_only(forward: ast.FunctionDef) -> None:
    required = [a for a, default in parameters(forward) if default is None]
    for argument in required:
        name = argument.arg
        loads = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(forward))
        typed = sum(
            isinstance(n, ast.Attribute) and n.attr in ("dtype", "device") and ast.unparse(n.value) == name
            for n in ast.walk(forward)
        )
        others = [a.arg for a in required if a is not argument and a in forward.args.args]
        if loads == typed and others:
            forward.args.args.remove(argument)
            forward.body = [_TypeOnly(name, others[0]).visit(s) for s in forward.body]


# -- what is never read -------------------------------------------------------------------------


def _functions(build: Build) -> list[ast.FunctionDef]:
    methods = [m for state in build.classes for m in state.methods.values()]
    return [*methods, *(f for f in build.functions.values() if f is not None)]


def _sweep(build: Build, top: ClassState) -> None:
    """Attributes, locals and parameters that nothing reads go, until none is left."""
    while True:
        functions = _functions(build)
        read = {
            n.attr
            for f in functions
            for n in ast.walk(f)
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
        }
        gone = sum(_Unread(_read_names(f), read).run(f) for f in functions)
        gone += sum(_parameters_gone(state, build) for state in build.classes)
        gone += _forward_gone(top)
        if not gone:
            return


def _read_names(function: ast.FunctionDef) -> set[str]:
    """Names that are read, but for ``x = f(x)`` where nothing else reads ``x``."""
    reads = Counter(
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                reads[name] -= sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))
            case _:
                pass
    return {name for name, number in reads.items() if number > 0}


class _Unread(ast.NodeTransformer):
    """Drops assignments to names and attributes that are never read."""

    def __init__(self, names: set[str], attributes: set[str]) -> None:
        self.names, self.attributes, self.gone = names, attributes, 0

    def run(self, function: ast.FunctionDef) -> int:
        """Number of statements dropped."""
        self.generic_visit(function)
        function.body = function.body or [ast.Pass()]
        return self.gone

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        if len(node.targets) == 1 and self._is_unread(node.targets[0]):
            self.gone += 1
            return None
        return node

    def _is_unread(self, target: ast.expr) -> bool:
        match target:
            case ast.Name(id=name):
                return name not in self.names
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return attr not in self.attributes
            case ast.Tuple(elts=elts):
                return all(isinstance(e, ast.Name) and e.id not in self.names for e in elts)
            case _:
                return False

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node

    def visit_For(self, node: ast.For) -> ast.AST | None:
        self.generic_visit(node)
        return node if node.body else None


def _parameters_gone(state: ClassState, build: Build) -> int:
    """Parameters of the configuration that a constructor does not read, gone from its callers too."""
    init = state.methods.get("__init__")
    if init is None:
        return 0
    read = _read_names(init)
    unread = [n for n in state.arguments if n not in read]
    if state is build.classes[0]:
        unread += [n for n in state.numbers if n not in read]
        state.numbers = {n: v for n, v in state.numbers.items() if n in read}
    if not unread:
        return 0
    state.arguments = {n: v for n, v in state.arguments.items() if n in read}
    _without(init, set(unread))
    for other in build.classes:
        for call, part in other.constructions:
            if part is state:
                call.keywords = [k for k in call.keywords if k.arg not in unread]
    return len(unread)


def _without(function: ast.FunctionDef, names: set[str]) -> None:
    arguments = function.args
    num = len(arguments.args) - len(arguments.defaults)
    pairs = list(zip(arguments.args, [*([None] * num), *arguments.defaults], strict=True))
    kept = [(a, d) for a, d in pairs if a.arg not in names]
    arguments.args = [a for a, _ in kept]
    arguments.defaults = [d for _, d in kept if d is not None]
    arguments.kwonlyargs = [a for a in arguments.kwonlyargs if a.arg not in names]
    arguments.kw_defaults = [None] * len(arguments.kwonlyargs)


def _forward_gone(top: ClassState) -> int:
    forward = top.methods["forward"]
    read = _read_names(forward)
    unread = {a.arg for a, _ in parameters(forward) if a.arg not in read}
    _without(forward, unread)
    return len(unread)


# -- writing ------------------------------------------------------------------------------------


def _signature(top: ClassState) -> dict[str, int | float | None]:
    """Whole numbers first; fractions, and what had a default, have one."""
    init = top.methods.get("__init__")
    if init is None:
        return {}
    own = {a.arg: d for a, d in parameters(init)}
    numbers = {n: top.numbers.get(n) for n in own}
    numbers |= {n: argument.value for n, argument in top.arguments.items() if n in own}
    plain = [n for n in own if own[n] is None and not isinstance(numbers[n], float)]
    rest = [n for n in own if n not in plain]
    init.args.args = [ast.arg("self"), *(ast.arg(n) for n in (*plain, *rest))]
    init.args.defaults = [own[n] or ast.Constant(numbers[n]) for n in rest]
    init.args.kwonlyargs, init.args.kw_defaults = [], []
    if any(v is not None and not is_number(v) for v in numbers.values()):
        raise Unfit("an argument is no number")
    return {n: numbers[n] for n in (*plain, *rest)}


def _source(build: Build, top: ClassState) -> str:
    parts: list[ast.stmt] = [*build.constants.values()]
    used = _used(build, top)
    parts += [f for n, f in build.functions.items() if f is not None and n in used]
    parts += [_class(s) for s in reversed(build.classes) if s.name in used]
    body = "\n\n\n".join(ast.unparse(ast.fix_missing_locations(part)) for part in parts)
    body = re.sub(r"(?m)^(class .*:\n)\n", r"\1", body)
    imports = ["import math", ""] if re.search(r"\bmath\.", body) else []
    imports += ["import torch", "import torch.nn as nn"]
    imports += ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    return "\n".join(imports) + f"\n\n\n{body}\n"


def _used(build: Build, top: ClassState) -> set[str]:
    """Classes and functions that the class reaches."""
    bodies: dict[str, list[ast.FunctionDef]] = {s.name: list(s.methods.values()) for s in build.classes}
    bodies |= {n: [f] for n, f in build.functions.items() if f is not None}
    found, todo = {top.name}, [top.name]
    while todo:
        for function in bodies[todo.pop()]:
            new = (_read_names(function) & bodies.keys()) - found
            found |= new
            todo += new
    return found


def _class(state: ClassState) -> ast.ClassDef:
    order = [n.name for n in state.node.body if isinstance(n, ast.FunctionDef)]
    methods = sorted(state.methods.values(), key=lambda m: order.index(m.name))
    base = ast.unparse(state.node.bases[0]).removeprefix("torch.")
    base = base if base.startswith("nn.") else "nn.Module"
    for name in [n for n in ast.walk(ast.Module(list(methods), [])) if isinstance(n, ast.arg)]:
        name.annotation = None
    return ast.ClassDef(state.name, [ast.parse(base, mode="eval").body], [], list(methods), [])
