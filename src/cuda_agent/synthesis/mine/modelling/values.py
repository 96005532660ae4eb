"""What an expression of a modelling file is known to be under a configuration; nothing of the file is run."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import math
import operator
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.synthesis.mine.modelling.walk import Unfit

Number = int | float


@dataclass(frozen=True)
class Known:
    """A value.

    Attributes:
        value: of the expression under the default configuration.
        soft: it follows from a number that stays an argument of the seed.
    """

    value: Any
    soft: bool = False


@dataclass
class SelfRef:
    """The module itself, with what is known of its attributes."""

    attributes: dict[str, Known] = field(default_factory=dict)


class Given:
    """A tensor that is always given: it is not None, and no more is known of it."""

    def __bool__(self) -> bool:
        raise ValueError("unknown")

    def __eq__(self, _other: object) -> bool:
        raise ValueError("unknown")

    __hash__ = None  # type: ignore[assignment]


_DROPS = re.compile(r"drop|layerdrop|stochastic_depth|jitter_noise|noise_epsilon")
_TYPE_NAMES = ("int", "float", "str", "bool", "list", "tuple", "dict")
_FUNCTIONS = (*_TYPE_NAMES, "getattr", "hasattr", "isinstance", "len", "min", "max", "round", "any", "all")
_BUILTINS = {name: getattr(builtins, name) for name in _FUNCTIONS}
_MODULES = {"collections": collections, "math": math}
_TYPES = {name: Known(_BUILTINS[name]) for name in _TYPE_NAMES}
_GLOBAL = (
    _TYPES
    | {"Iterable": Known(collections.abc.Iterable)}
    | {name: Known(module) for name, module in _MODULES.items()}
)
_FALSE = re.compile(r"(^|\.)is_\w*(tracing|compiling|available|zero3\w*|fsdp\w*|exporting)$")
_METHODS = {"get", "pop", "startswith", "endswith", "lower", "split", "index", "keys"}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def is_config(value: Any) -> bool:
    """Whether a value is a configuration of transformers."""
    return type(value).__name__.endswith("Config") and hasattr(value, "to_dict")


def is_number(value: Any) -> bool:
    """An int or float, no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_plain(value: Any) -> bool:
    """What a literal can say."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def evaluated(node: ast.expr, names: Mapping[str, Known]) -> Known | None:
    """The value of an expression; ``None`` where it is not known.

    Args:
        node: any expression.
        names: what is known of local names.
    """
    try:
        return _value(node, names)
    except (Unfit, RecursionError):
        raise
    except Exception:  # noqa: BLE001  an expression on a default configuration may fail in any way
        return None


def _value(node: ast.expr, names: Mapping[str, Known]) -> Known | None:
    match node:
        case ast.Constant(value=value):
            return Known(value)
        case ast.Name(id=name):
            return names.get(name) or _GLOBAL.get(name)
        case ast.Attribute():
            return _attribute(node, names)
        case ast.Call():
            return _call(node, names)
        case ast.BoolOp(op=op, values=values):
            return _short_circuit(values, names, stops_at=isinstance(op, ast.Or))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            chosen = evaluated(test, names)
            return None if chosen is None else evaluated(body if chosen.value else orelse, names)
        case _:
            return _operation(node, names)


def _operation(node: ast.expr, names: Mapping[str, Known]) -> Known | None:
    match node:
        case ast.Subscript(value=base, slice=index):
            return _joined(lambda a, b: a[b], [base, index], names)
        case ast.BinOp(left=left, op=op, right=right):
            return _joined(_BINARY[type(op)], [left, right], names)
        case ast.UnaryOp(op=op, operand=operand):
            return _joined(_UNARY[type(op)], [operand], names)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            found = _joined(_COMPARE[type(op)], [left, right], names)
            is_identity = isinstance(op, ast.Is | ast.IsNot)
            return Known(found.value) if found is not None and is_identity else found
        case ast.List(elts=items):
            return _joined(lambda *args: list(args), items, names)
        case ast.Tuple(elts=items):
            return _joined(lambda *args: tuple(args), items, names)
        case _:
            return None


def _joined(function: Callable[..., Any], parts: list[ast.expr], names: Mapping[str, Known]) -> Known | None:
    known = [evaluated(part, names) for part in parts]
    if function is hasattr and isinstance(getattr(known[0], "value", None), Given):
        return None
    if any(k is None for k in known):
        return None
    return Known(function(*(k.value for k in known if k)), any(k.soft for k in known if k))


def _short_circuit(values: list[ast.expr], names: Mapping[str, Known], *, stops_at: bool) -> Known | None:
    """``and`` and ``or``; an unknown part is skipped over where a later hard constant decides."""
    result: Known | None = None
    unknown = False
    for part in values:
        found = evaluated(part, names)
        if found is None:
            unknown = True
            continue
        if bool(found.value) is stops_at:
            return found if not unknown or isinstance(found.value, bool) else None
        result = found
    return None if unknown else result


def _attribute(node: ast.Attribute, names: Mapping[str, Known]) -> Known | None:
    base = evaluated(node.value, names)
    if base is None:
        return None
    if isinstance(base.value, SelfRef):
        return Known(False) if node.attr == "training" else base.value.attributes.get(node.attr)
    if is_config(base.value):
        if not hasattr(base.value, node.attr):
            raise Unfit(f"its configuration has no {node.attr}")
        return setting(base.value, node.attr)
    return Known(getattr(base.value, node.attr)) if isinstance(base.value, types.ModuleType) else None


def setting(config: Any, name: str) -> Known:
    """A configuration's value; rates of dropout and noise are zero."""
    value = getattr(config, name)
    if is_number(value):
        return Known(0.0) if _DROPS.search(name) else Known(value, soft=True)
    return Known(value)


def _call(node: ast.Call, names: Mapping[str, Known]) -> Known | None:
    if _FALSE.search(ast.unparse(node.func)):
        return Known(False)
    match node.func:
        case ast.Name(id="getattr") if len(node.args) >= 2:
            return _getattr(node, names)
        case ast.Name(id="isinstance") if _is_none(evaluated(node.args[0], names)):
            return Known(False)
        case ast.Name(id="hasattr" | "isinstance" as name):
            found = _joined(_BUILTINS[name], node.args, names)
            return None if found is None else Known(_of_self(node, names, found.value))
        case ast.Name(id=name) if name in _BUILTINS and not node.keywords:
            return _joined(_BUILTINS[name], node.args, names)
        case ast.Attribute(value=base, attr=attr) if attr in _METHODS:
            owner = evaluated(base, names)
            if owner is not None and isinstance(owner.value, dict | str | list | tuple):
                return _joined(getattr(owner.value, "get" if attr == "pop" else attr), node.args, names)
        case _:
            pass
    return None


def _is_none(known: Known | None) -> bool:
    return known is not None and known.value is None


def _of_self(node: ast.Call, names: Mapping[str, Known], value: bool) -> bool:
    """Attributes of the module that nothing is known of may exist: no answer then."""
    first = evaluated(node.args[0], names)
    if first is not None and isinstance(first.value, SelfRef):
        attribute = evaluated(node.args[1], names)
        if attribute is None or attribute.value not in first.value.attributes:
            raise ValueError("unknown")
        return True
    return value


def _getattr(node: ast.Call, names: Mapping[str, Known]) -> Known | None:
    base, attr = evaluated(node.args[0], names), evaluated(node.args[1], names)
    if base is None or attr is None:
        return None
    if is_config(base.value):
        if hasattr(base.value, attr.value):
            return setting(base.value, attr.value)
        return evaluated(node.args[2], names) if len(node.args) > 2 else None
    return base.value.attributes.get(attr.value) if isinstance(base.value, SelfRef) else None
