"""The operators of the installed PyTorch, found by walking its namespaces."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cuda_agent.synthesis.mine.parameters import (
    Kind,
    Parameter,
    is_ignored,
    of_function,
    of_schema,
    of_text,
    overloads_of,
)
from cuda_agent.synthesis.mine.subject import Subject


class Unfit(StrEnum):
    """Why a public name is no operator to try."""

    CONTAINER = "a container or base class"
    IN_PLACE = "the in-place form of another"
    UNDOCUMENTED = "no documentation: not meant to be called"
    METHOD = "a method of tensors"
    NO_TENSOR = "takes no tensor"
    NO_SIGNATURE = "no signature to read"
    OTHER_ARGUMENT = "needs an argument that is neither a tensor nor a plain value"


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        id: full dotted name.
        target: as code spells it.
        function: what it names.
        prefix: of the operator's schema.
    """

    id: str
    target: str
    function: Any
    prefix: str = ""


_NAMESPACES: tuple[tuple[Any, str, str, str], ...] = (
    (nn, "torch.nn", "nn", ""),
    (torch, "torch", "torch", ""),
    (F, "torch.nn.functional", "F", ""),
    (torch.linalg, "torch.linalg", "torch.linalg", "linalg_"),
    (torch.fft, "torch.fft", "torch.fft", "fft_"),
    (torch.special, "torch.special", "torch.special", "special_"),
    (torch.Tensor, "torch.Tensor", "Tensor", ""),
)
"""In order of preference where two names mean the same operator."""


def names() -> Iterator[Name]:
    """Every public callable of the namespaces, in order of preference."""
    for space, full, short, prefix in _NAMESPACES:
        for key in sorted(dir(space)):
            value = getattr(space, key, None)
            if not key.startswith("_") and _is_operator(space, key, value):
                yield Name(f"{full}.{key}", f"{short}.{key}", value, prefix)


def _is_operator(space: Any, key: str, value: Any) -> bool:
    if space is nn:
        return isinstance(value, type) and issubclass(value, nn.Module)
    if not callable(value) or isinstance(value, type):
        return False
    if space is torch.Tensor:
        return not hasattr(torch, key) and not key.startswith("is_")
    return not inspect.isfunction(value) or value.__module__.startswith(_OWN)


_OWN = ("torch.functional", "torch.nn.functional", "torch._jit_internal", "torch._lobpcg", "torch._lowrank")


def subjects(name: Name) -> list[Subject] | Unfit:
    """The subjects of a name, one for each overload of the operator; the usual one first.

    Args:
        name: a public name.
    """
    short = name.id.rpartition(".")[2]
    if isinstance(name.function, type):
        return _module(name)
    if short.endswith("_"):
        return Unfit.IN_PLACE
    if name.target.startswith("Tensor."):
        return Unfit.METHOD
    if not (getattr(name.function, "__doc__", "") or "").strip():
        return Unfit.UNDOCUMENTED
    found = [subject for subject in _variants(name) if subject is not None]
    fit = [subject for subject in found if subject.tensors]
    if not fit:
        return Unfit.NO_TENSOR if found else Unfit.NO_SIGNATURE
    usable = [subject for subject in fit if _is_usable(subject)]
    return usable or Unfit.OTHER_ARGUMENT


def _is_usable(subject: Subject) -> bool:
    return not any(p.required and p.kind is Kind.OTHER for p in (*subject.hyper, *subject.tensors))


def _module(name: Name) -> list[Subject] | Unfit:
    cls = name.function
    if cls.forward is nn.Module.forward or cls.__module__.endswith(("container", "lazy")) or _is_lazy(cls):
        return Unfit.CONTAINER
    try:
        hyper = of_function(_constructor(cls))
        tensors = of_function(cls.forward)
    except (TypeError, ValueError):
        return Unfit.NO_SIGNATURE
    # Where annotations say nothing, constructors take numbers and modules take tensors.
    hyper = tuple(_untyped(p, Kind.INT) for p in hyper)
    tensors = tuple(p for p in (_untyped(p, Kind.TENSOR) for p in tensors) if _is_input(p))
    if not tensors:
        return Unfit.NO_TENSOR
    subject = Subject(
        name.target, cls, True, hyper=_options(hyper), tensors=tensors, doc=inspect.getdoc(cls) or ""
    )
    return [subject] if _is_usable(subject) else Unfit.OTHER_ARGUMENT


def _untyped(parameter: Parameter, kind: Kind) -> Parameter:
    guess = parameter.kind is Kind.OTHER and parameter.required and not parameter.annotated
    return replace(parameter, kind=kind) if guess else parameter


def _is_input(parameter: Parameter) -> bool:
    """Lists of tensors that may be left out are left out."""
    return parameter.is_tensor and (parameter.kind is Kind.TENSOR or parameter.required)


def _is_lazy(cls: type) -> bool:
    return any(base.__name__ == "LazyModuleMixin" for base in cls.__mro__)


def _constructor(cls: Any) -> Callable[..., Any]:
    """The constructor, or the base's where this one says no more than ``*args``."""
    for base in cls.__mro__:
        made: Callable[..., Any] | None = base.__dict__.get("__init__")
        if made is None or base in (nn.Module, object):
            continue
        kinds = [p.kind for p in inspect.signature(made).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL not in kinds or overloads_of(made):
            return made
    return _nothing


def _nothing() -> None:
    """A constructor without arguments."""


def _variants(name: Name) -> Iterator[Subject | None]:
    function = name.function
    if (parameters := _signature(function)) is not None:
        yield _of_parameters(name, parameters)
        return
    own = name.id.rpartition(".")[2]
    operators = {name.prefix + own: None, getattr(function, "__name__", own): None}
    schemas = [s for o in operators for s in torch._C._jit_get_schemas_for_operator(f"aten::{o}")]
    found = []
    for schema in schemas:
        parameters = of_schema(schema)
        if parameters is not None and any(p.is_tensor for p in parameters) and not schema.is_mutable:
            found.append((schema.overload_name, parameters))
    found = sorted(_distinct(found), key=lambda item: item[0] != "")
    for _, parameters in found:
        yield _of_parameters(name, parameters)


def _signature(function: Any) -> tuple[Parameter, ...] | None:
    """Parameters of a Python function, by its documentation where the code says ``*args``."""
    try:
        parameters = of_function(function)
    except (TypeError, ValueError):
        return None
    if [p.name for p in parameters] == ["args"]:
        first = (inspect.getdoc(function) or "").partition("\n")[0]
        return of_text(first) or parameters
    return parameters


def _distinct(
    found: list[tuple[str, tuple[Parameter, ...]]],
) -> list[tuple[str, tuple[Parameter, ...]]]:
    """Overloads that Python tells apart: the most general first, names of dimensions aside."""
    seen: dict[tuple[Any, ...], tuple[str, tuple[Parameter, ...]]] = {}
    for overload, parameters in found:
        if not re.search(r"(?i)dimname|_out$|names", overload):
            seen.setdefault(tuple((p.name, p.kind) for p in parameters), (overload, parameters))
    kept = [item for item in seen.values() if item[1][0].is_tensor] or list(seen.values())
    return [item for item in kept if not any(_is_part(item[1], other[1]) for other in kept)]


def _is_part(a: tuple[Parameter, ...], b: tuple[Parameter, ...]) -> bool:
    """All that the first takes, the second takes too, with the rest left out."""
    ours, theirs = {(p.name, p.kind) for p in a}, {(p.name, p.kind) for p in b}
    return ours < theirs and all(not p.required for p in b if (p.name, p.kind) not in ours)


def _of_parameters(name: Name, parameters: tuple[Parameter, ...]) -> Subject:
    typed = tuple(_guessed(p) for p in parameters)
    return Subject(
        name.target,
        name.function,
        False,
        hyper=_options(tuple(p for p in typed if not p.is_tensor)),
        tensors=tuple(p for p in typed if _is_input(p)),
        order=typed,
        doc=inspect.getdoc(name.function) or "",
    )


_TENSOR_NAMES = re.compile(r"^(input|tensor|x|a|b|A|B|x1|x2|other|target|self|query|key|value)$")


def _guessed(parameter: Parameter) -> Parameter:
    """A required argument without a type is a tensor where its name says so."""
    if parameter.kind is Kind.OTHER and parameter.required and _TENSOR_NAMES.match(parameter.name):
        return replace(parameter, kind=Kind.TENSOR)
    return parameter


def _options(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    return tuple(p for p in parameters if p.required or not is_ignored(p.name, p.default))
