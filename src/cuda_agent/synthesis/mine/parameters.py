"""Parameters of an operator: what may be given for each, read off annotations, defaults and schemas."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_overloads


class Kind(StrEnum):
    """What a parameter takes."""

    TENSOR = "tensor"
    TENSORS = "tensors"
    """A list of tensors."""
    INT = "int"
    INTS = "ints"
    """A tuple of whole numbers; often a single one stands for all."""
    FLOAT = "float"
    BOOL = "bool"
    TEXT = "text"
    OTHER = "other"


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: of the argument.
        kind: what it takes.
        default: what it is when left out; a value that JSON can say, else ``None``.
        required: it has no default.
        keyword_only: it cannot be given by position.
        starred: it takes all positional arguments that are left.
        annotated: its type was said.
        literals: values that its annotation lists.
    """

    name: str
    kind: Kind
    default: Any = None
    required: bool = True
    keyword_only: bool = False
    starred: bool = False
    annotated: bool = True
    literals: tuple[Any, ...] = ()

    @property
    def is_tensor(self) -> bool:
        """It takes one tensor or a list of them."""
        return self.kind in (Kind.TENSOR, Kind.TENSORS)


# Placement, storage and deprecated switches: nothing that an operator computes depends on them.
_IGNORED = re.compile(
    r"^(out|dtype|device|layout|pin_memory|memory_format|generator|inplace|size_average|_.*|sparse|names"
    r"|requires_grad|driver|return_indices)$"
)


def is_ignored(name: str, default: object) -> bool:
    """Whether a parameter is left at its default always."""
    return bool(_IGNORED.match(name)) or (name == "reduce" and default is None)


def of_function(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Parameters by signature.

    Raises:
        TypeError, ValueError: it has none to read.
    """
    declared = [*overloads_of(function), function]
    readable = [s for f in declared if not _is_open(s := inspect.signature(f))]
    signature = readable[0] if readable else inspect.signature(function)
    return tuple(_parameter(p) for p in signature.parameters.values() if p.name != "self" and _kept(p))


def overloads_of(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Declared overloads of a Python function; none of a builtin."""
    return list(get_overloads(function)) if inspect.isfunction(function) else []


def _is_open(signature: inspect.Signature) -> bool:
    """It says no more than ``*args, **kwargs``."""
    kinds = [p.kind for p in signature.parameters.values() if p.name != "self"]
    return inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds


def _kept(parameter: inspect.Parameter) -> bool:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return False
    return parameter.default is inspect.Parameter.empty or not is_ignored(parameter.name, parameter.default)


def _parameter(parameter: inspect.Parameter) -> Parameter:
    starred = parameter.kind is inspect.Parameter.VAR_POSITIONAL
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return Parameter(
        parameter.name,
        Kind.TENSORS if starred else kind_of_annotation(parameter.annotation, default),
        default if _is_plain(default) else None,
        required,
        parameter.kind is inspect.Parameter.KEYWORD_ONLY,
        starred,
        parameter.annotation is not inspect.Parameter.empty,
        _literals(parameter.annotation),
    )


def _literals(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return tuple(get_args(annotation))
    return tuple(value for part in get_args(annotation) for value in _literals(part))


_BY_TEXT: tuple[tuple[str, Kind], ...] = (
    (r"(?i)(list|tuple|sequence)\[.*tensor", Kind.TENSORS),
    (r"Tensor", Kind.TENSOR),
    (r"Literal\[\s*'", Kind.TEXT),
    (r"(?i)(tuple|list|sequence|size|_ratio|intlist)", Kind.INTS),
    (r"\bbool\b", Kind.BOOL),
    (r"\bint\b|SymInt|_int\b", Kind.INT),
    (r"\bfloat\b|\bnumber\b|Number|Scalar", Kind.FLOAT),
    (r"\bstr\b", Kind.TEXT),
)


def kind_of_annotation(annotation: Any, default: Any) -> Kind:
    """What an annotation (or, without one, a default) says."""
    if annotation is inspect.Parameter.empty:
        return _kind_of_default(default)
    if annotation is None:  # what PyTorch's BroadcastingList[int] comes to
        return Kind.INTS
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return next((kind for pattern, kind in _BY_TEXT if re.search(pattern, text)), Kind.OTHER)


def _kind_of_default(default: Any) -> Kind:
    kinds = {bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, str: Kind.TEXT, tuple: Kind.INTS}
    return kinds.get(type(default), Kind.OTHER)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def of_text(line: str) -> tuple[Parameter, ...]:
    """Parameters as the first line of a documentation says them: ``einsum(equation, *operands)``."""
    try:
        function = ast.parse(f"def {line.partition('->')[0].strip()}: ...").body[0]
    except SyntaxError:
        return ()
    if not isinstance(function, ast.FunctionDef):
        return ()
    found = [Parameter(a.arg, Kind.OTHER, annotated=False) for a in function.args.args]
    if function.args.vararg is not None:
        found.append(Parameter(function.args.vararg.arg, Kind.TENSORS, starred=True))
    return tuple(found)


def of_schema(schema: Any) -> tuple[Parameter, ...] | None:
    """Parameters of an operator's overload as Python takes them; ``None`` where Python has none such.

    Args:
        schema: ``torch._C.FunctionSchema``.
    """
    found = []
    for argument in schema.arguments:
        name = "input" if argument.name == "self" else argument.name
        default = argument.default_value if argument.has_default_value() else None
        if name in ("out", "generator") and not argument.has_default_value():
            return None
        if argument.has_default_value() and is_ignored(name, default):
            continue
        found.append(
            Parameter(
                name,
                _kind_of_schema_type(str(argument.type)),
                tuple(default) if isinstance(default, list) else default if _is_plain(default) else None,
                not argument.has_default_value(),
                argument.kwarg_only,
            )
        )
    return tuple(found)


def _kind_of_schema_type(text: str) -> Kind:
    text = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
    text = text if text.count("[") == text.count("]") else f"{text}]"
    exact = {
        "Tensor": Kind.TENSOR,
        "List[Tensor]": Kind.TENSORS,
        "int": Kind.INT,
        "SymInt": Kind.INT,
        "List[int]": Kind.INTS,
        "List[SymInt]": Kind.INTS,
        "float": Kind.FLOAT,
        "number": Kind.FLOAT,
        "bool": Kind.BOOL,
        "str": Kind.TEXT,
    }
    return exact.get(text, Kind.OTHER)
