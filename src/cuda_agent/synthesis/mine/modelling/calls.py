"""Calls in a function under specialisation: parts, helpers, activations; what does not run goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from cuda_agent.synthesis.mine.modelling.names import LAYER, parameters
from cuda_agent.synthesis.mine.modelling.state import Build, ClassState, NeedsValue, Scope
from cuda_agent.synthesis.mine.modelling.values import Known, evaluated, is_config, is_plain
from cuda_agent.synthesis.mine.modelling.walk import SourceFile, Unfit, is_module, method, package, parsed

INTERFACE = "attention_interface"
_EAGER = "eager_attention_forward"
_IDLE = re.compile(r"(^|\.)(\w*Dropout\d?d?|\w*DropPath|\w*StochasticDepth)$")
_IDLE_FUNCTIONS = re.compile(
    r"(^|\.)(dropout\d?d?|alpha_dropout|drop_path|feature_dropout|stochastic_depth)$"
)
_PLAIN_ACTIVATIONS = {
    "SiLUActivation": "nn.SiLU()",
    "GELUActivation": "nn.GELU()",
    "GELUTanh": "nn.GELU(approximate='tanh')",
    "NewGELUActivation": "nn.GELU(approximate='tanh')",
    "MishActivation": "nn.Mish()",
    "LinearActivation": "nn.Identity()",
}
"""Classes of transformers that torch has under another name."""
_MAKES = re.compile(r"torch\.(arange|zeros|ones|full|tensor|eye|linspace|randn?|meshgrid|empty)\(")
_EMPTY = re.compile(r"^(torch\.(empty|zeros|Tensor|FloatTensor))$")


def is_idle(node: ast.expr) -> bool:
    """Whether an expression makes a dropout, or nothing."""
    if isinstance(node, ast.IfExp):
        branches = (node.body, node.orelse)
        names = [ast.unparse(b.func) if isinstance(b, ast.Call) else ast.unparse(b) for b in branches]
        plain = [n in ("nn.Identity", "None") or bool(_IDLE.search(n)) for n in names]
        return all(plain) and any(_IDLE.search(n) for n in names)
    return isinstance(node, ast.Call) and bool(_IDLE.search(ast.unparse(node.func)))


class Calls(ast.NodeTransformer):
    """The part of a function's pass that is about calls."""

    scope: Scope
    build: Build
    env: dict[str, Known]
    removed: frozenset[str]
    alias: dict[str, str]
    elements: dict[str, ClassState]
    refuse_none: Callable[[ast.expr], None]
    resolved: Callable[[str], tuple[SourceFile, Any] | None]

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in self.alias:
            itself = ast.Name("self", ast.Load())
            node.func = ast.Attribute(itself, self.alias[node.func.id], ast.Load())
        if ast.unparse(node.func) == "getattr" and len(node.args) == 3:
            return self._getattr(node)
        for handled in (
            self._not_run,
            self._activation_call,
            self._helper,
            self._own,
            self._part,
            self._moved,
        ):
            made = handled(node)
            if made is not None:
                return made
        return self._plain(node)

    def _getattr(self, node: ast.Call) -> Any:
        """What a configuration lacks is the default; an attribute of the module stays a look-up."""
        base, name = evaluated(node.args[0], self.env), node.args[1]
        from_config = base is not None and is_config(base.value) and isinstance(name, ast.Constant)
        if base is not None and from_config and not hasattr(base.value, str(ast.literal_eval(name))):
            return self.visit(node.args[2])
        return self._plain(node)

    # -- what does not run ----------------------------------------------------------------------

    def _not_run(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        owner = self.scope.owner
        idle = owner is not None and name.removeprefix("self.") in owner.idle
        if (idle or _IDLE_FUNCTIONS.search(name)) and node.args:
            return self.visit(node.args[0])
        if "checkpoint" in name:
            raise Unfit("checkpointing")
        return None

    def _moved(self, node: ast.Call) -> Any:
        """``x.to(device)``: everything but a tensor made in forward is on one device."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "to":
            return None
        if not self.scope.in_init and _MAKES.search(ast.unparse(node.func.value)):
            return None
        kept = [a for a in node.args if not self._is_device(a)]
        keywords = [k for k in node.keywords if k.arg != "device" and not self._is_none(k.value)]
        if not kept and not keywords:
            return self.visit(node.func.value)
        node.func.value = self.visit(node.func.value)
        node.args = [self.visit(a) for a in kept]
        node.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in keywords]
        return node

    def _is_device(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        return text.endswith(".device") or text in ("device", "'cpu'") or self._is_none(node)

    def _is_none(self, node: ast.expr) -> bool:
        known = evaluated(node, self.env)
        return known is not None and known.value is None

    # -- activations ----------------------------------------------------------------------------

    def activation(self, node: ast.Subscript) -> ast.expr | None:
        """``ACT2FN[name]`` as a module; ``None`` where the expression is something else."""
        if not isinstance(node.value, ast.Name) or node.value.id not in ("ACT2FN", "ACT2CLS"):
            return None
        return self._activation_named(node.slice)

    def _activation_call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "get_activation":
            return self._activation_named(node.args[0])
        if isinstance(node.func, ast.Subscript) and ast.unparse(node.func.value) == "ACT2CLS":
            return self._activation_named(node.func.slice)
        return None

    def _activation_named(self, key: ast.expr) -> ast.expr:
        known = evaluated(key, self.env)
        if known is None or not isinstance(known.value, str):
            raise Unfit("its activation is not known")
        file = parsed(package() / "activations.py")
        table = getattr(file.definitions["ACT2CLS"], "value", None)
        assert isinstance(table, ast.Dict)
        for name, value in zip(table.keys, table.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == known.value:
                return self._activation_code(file, value)
        raise Unfit(f"no activation is called {known.value}")

    def _activation_code(self, file: SourceFile, value: ast.expr) -> ast.expr:
        made, options = (value.elts[0], value.elts[1]) if isinstance(value, ast.Tuple) else (value, None)
        text = ast.unparse(made)
        if text in _PLAIN_ACTIVATIONS:
            return ast.parse(_PLAIN_ACTIVATIONS[text], mode="eval").body
        if text.startswith("nn."):
            return ast.parse(f"{text}()", mode="eval").body
        node = file.definitions.get(text)
        if not isinstance(node, ast.ClassDef):
            raise Unfit(f"needs {text} of transformers.activations")
        keywords = []
        if isinstance(options, ast.Dict):
            pairs = zip(options.keys, options.values, strict=True)
            keywords = [ast.keyword(str(k.value), v) for k, v in pairs if isinstance(k, ast.Constant)]
        return self._construction(ast.Call(made, [], keywords), file, node)

    # -- helpers --------------------------------------------------------------------------------

    def _helper(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name):
            return None
        name = _EAGER if node.func.id == INTERFACE else node.func.id
        found = self.resolved(name)
        if found is None:
            if node.func.id == INTERFACE:
                raise Unfit("its attention is of another library")
            return None
        file, definition = found
        if isinstance(definition, ast.ClassDef):
            return self._construction(node, file, definition)
        if isinstance(definition, ast.FunctionDef):
            return self._function_call(node, file, definition)
        return None

    def _construction(self, node: ast.Call, file: SourceFile, definition: ast.ClassDef) -> ast.expr:
        owner = self.scope.owner
        if not is_module(definition):
            raise Unfit(f"needs {definition.name}, which is no plain module")
        if owner is None or not self.scope.in_init:
            raise Unfit(f"makes a {definition.name} outside of its constructor")
        init = method(definition, "__init__")
        if init is None:
            known: dict[str, Known] = {}
            args, keywords = [self.visit(a) for a in node.args], self._keywords(node)
        else:
            known, args, keywords = self._bound(init, node, f"{definition.name}.__init__", is_init=True)
        hard = {n: v for n, v in known.items() if not v.soft}
        soft = {n: v for n, v in known.items() if v.soft}
        state = self.scope.specialiser.part(file, definition, hard, soft)
        made = ast.Call(ast.Name(state.name, ast.Load()), args, keywords)
        owner.constructions.append((made, state))
        return made

    def _function_call(self, node: ast.Call, file: SourceFile, definition: ast.FunctionDef) -> ast.expr:
        known, args, keywords = self._bound(definition, node, definition.name)
        try:
            name, _ = self.scope.specialiser.function(file, definition, known)
        except NeedsValue as need:
            raise self._needed(definition, node, need) from None
        return ast.Call(ast.Name(name, ast.Load()), args, keywords)

    def _own(self, node: ast.Call) -> Any:
        """A method of the class itself."""
        owner = self.scope.owner
        if (
            owner is None
            or not isinstance(node.func, ast.Attribute)
            or ast.unparse(node.func.value) != "self"
        ):
            return None
        definition = method(owner.node, node.func.attr)
        if definition is None:
            return None
        return self._method_call(node, owner, definition)

    def _part(self, node: ast.Call) -> Any:
        state = self._part_of(node.func)
        definition = None if state is None else method(state.node, "forward")
        if state is None or definition is None:
            return None
        return self._method_call(node, state, definition)

    def _method_call(self, node: ast.Call, state: ClassState, definition: ast.FunctionDef) -> ast.expr:
        known, args, keywords = self._bound(definition, node, f"{state.name}.{definition.name}")
        try:
            self.scope.specialiser.method(state, definition.name, known)
        except NeedsValue as need:
            raise self._needed(definition, node, need) from None
        func = node.func if definition.name != "forward" else self.visit(node.func)
        return ast.Call(func, args, keywords)

    def _needed(self, definition: ast.FunctionDef, node: ast.Call, need: NeedsValue) -> Exception:
        """What a helper needs, its caller's own parameter must give."""
        key, name = need.args
        given = _given(definition, node).get(name)
        if isinstance(given, ast.Name) and given.id in self.removed:
            self.build.kept.add((key, name))
            return NeedsValue(self.scope.key, given.id)
        return Unfit(f"{definition.name} needs {name}")

    def _part_of(self, func: ast.expr) -> ClassState | None:
        owner = self.scope.owner
        match func:
            case ast.Name(id=name):
                return self.elements.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if owner is not None:
                return owner.parts.get(attr)
            case ast.Subscript(value=base):
                return self._part_of(base)
            case _:
                return None

    # -- binding --------------------------------------------------------------------------------

    def _bound(
        self, definition: ast.FunctionDef, node: ast.Call, key: str, *, is_init: bool = False
    ) -> tuple[dict[str, Known], list[ast.expr], list[ast.keyword]]:
        """What is known of the arguments of a call, and the arguments that are left to pass."""
        given = _given(definition, node)
        num_positional = len(node.args)
        known: dict[str, Known] = {}
        args: list[ast.expr] = []
        keywords: list[ast.keyword] = []
        for index, (parameter, default) in enumerate(parameters(definition)):
            name = parameter.arg
            value = self._argument_known(given.get(name), default, (key, name))
            if is_init and LAYER.match(name):
                value = Known(0)
            if value is not None:
                known[name] = value
            stays = value is None or value.soft or not _leaves(value) or (key, name) in self.build.defaulted
            if name not in given or not stays:
                continue
            passed = self.visit(given[name])
            if index < num_positional and len(args) + len(keywords) == len(args):
                args.append(passed)
            else:
                keywords.append(ast.keyword(name, passed))
        return known, args, keywords

    def _argument_known(
        self, given: ast.expr | None, default: ast.expr | None, place: tuple[str, str]
    ) -> Known | None:
        if given is not None:
            return evaluated(given, self.env)
        if default is None:
            raise Unfit(f"{place[0]} is called without {place[1]}")
        return None if place in self.build.kept else evaluated(default, {})

    def _keywords(self, node: ast.Call) -> list[ast.keyword]:
        dropped = {None, "device"} if self.scope.in_init else {None}
        return [
            ast.keyword(k.arg, self.visit(k.value))
            for k in node.keywords
            if k.arg not in dropped and not (k.arg in ("dtype", "device") and self._is_none(k.value))
        ]

    # -- any other ------------------------------------------------------------------------------

    def _plain(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        if any(k.arg is None and evaluated(k.value, self.env) is None for k in node.keywords):
            raise Unfit("passes on keywords that are not known")
        if name.startswith("self.") and node.args:
            self.refuse_none(node.args[0])
        if name.endswith("nn.Embedding"):
            node.args = node.args[:2]
            node.keywords = [k for k in node.keywords if k.arg != "padding_idx"]
        args = [self.visit(a) for a in node.args if not is_idle(a)]
        if name.endswith("nn.Parameter") and args and isinstance(args[0], ast.Call):
            args[0] = _initialised(args[0])
        made = ast.Call(self.visit(node.func), args, self._keywords(node))
        self._appended(made)
        return made

    def _appended(self, node: ast.Call) -> None:
        """``layers.append(Part())``: what iterates over them calls such parts."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[item]):
                self.typed(name, item)
            case _:
                pass

    def typed(self, name: str, value: ast.expr) -> None:
        """Note that a local name holds a part, or a list of such."""
        owner = self.scope.owner
        for call, state in owner.constructions if owner is not None else []:
            if any(part is call for part in ast.walk(value)):
                self.elements[name] = state

    def typed_loop(self, node: ast.For) -> None:
        """Note what a loop over parts gives."""
        sources, targets = _loop(node)
        for source, target in zip(sources, targets, strict=False):
            state = self._part_of(source)
            if state is not None and isinstance(target, ast.Name):
                self.elements[target.id] = state


def _leaves(value: Known) -> bool:
    return is_config(value.value) or is_plain(value.value)


def _given(definition: ast.FunctionDef, node: ast.Call) -> dict[str, ast.expr]:
    """Arguments of a call by parameter."""
    if any(isinstance(a, ast.Starred) for a in node.args):
        raise Unfit("passes on a list of arguments")
    names = [p.arg for p, _ in parameters(definition)]
    if len(node.args) > len(names):
        raise Unfit("more arguments than parameters")
    found = dict(zip(names, node.args, strict=False))
    return found | {k.arg: k.value for k in node.keywords if k.arg in names}


def _loop(node: ast.For) -> tuple[list[ast.expr], list[ast.expr]]:
    """What a loop iterates over and where it puts it, ``enumerate`` and ``zip`` undone."""
    match node.iter, node.target:
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, target]):
            return [inner], [target]
        case ast.Call(func=ast.Name(id="zip"), args=inners), ast.Tuple(elts=targets):
            return list(inners), list(targets)
        case inner, target:
            return [inner], [target]


def _initialised(node: ast.Call) -> ast.Call | ast.expr:
    """A parameter that the model's own initialisation fills: small random numbers."""
    if not _EMPTY.match(ast.unparse(node.func)) or not node.args:
        return node
    scale = 0.1 if len(node.args) == 1 and not isinstance(node.args[0], ast.Tuple | ast.List) else 0.02
    func = ast.parse("torch.randn", mode="eval").body
    keywords = [k for k in node.keywords if k.arg == "dtype"]
    return ast.BinOp(ast.Constant(scale), ast.Mult(), ast.Call(func, node.args, keywords))
