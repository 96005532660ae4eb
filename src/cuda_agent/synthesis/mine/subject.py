"""An operator under trial: how to build it, what it takes, how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.synthesis.mine.parameters import Kind, Parameter
from cuda_agent.synthesis.seed_rules import Value

NUM_LISTED = 2
"""Tensors given where an operator takes a list of them."""


@dataclass(frozen=True)
class Subject:
    """One operator.

    Attributes:
        target: as code spells it (``nn.Conv2d``, ``torch.cumsum``).
        function: the class of the module, or the function.
        is_module: ``function`` constructs a module; else it computes.
        hyper: parameters that are no tensors.
        tensors: parameters that are, in the order of the call.
        order: names of all parameters of a function's call, in order.
        doc: documentation.
    """

    target: str
    function: Callable[..., Any]
    is_module: bool
    hyper: tuple[Parameter, ...] = ()
    tensors: tuple[Parameter, ...] = ()
    order: tuple[Parameter, ...] = ()
    doc: str = field(default="", repr=False)

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """One for each tensor; the items of a list are numbered."""
        found: list[Parameter] = []
        for tensor in self.tensors:
            if tensor.kind is Kind.TENSORS:
                found += [Parameter(name, Kind.TENSOR) for name in self.listed()]
            else:
                found.append(tensor)
        return tuple(found)

    def listed(self) -> tuple[str, ...]:
        """Names of the inputs that are given as one list; empty where there is none."""
        return ("first", "second") if any(t.kind is Kind.TENSORS for t in self.tensors) else ()

    def build(self, options: Mapping[str, Value]) -> Callable[..., Any]:
        """The callable of all inputs (``None`` for those left out).

        Args:
            options: hyper-parameters that are not at their default.
        """
        if self.is_module:
            made = self.function(**options)
            made.eval()
            made.requires_grad_(False)
            return _ByName(made, self.inputs) if len(self.inputs) > 1 else made
        return _Applied(self, options)


@dataclass(frozen=True)
class _ByName:
    """A module that leaves out what is ``None``."""

    module: Any
    inputs: Sequence[Parameter]

    def __call__(self, *tensors: Any) -> Any:
        names = [p.name for p in self.inputs]
        required = [t for t, p in zip(tensors, self.inputs, strict=True) if p.required]
        rest = {
            n: t
            for n, t, p in zip(names, tensors, self.inputs, strict=True)
            if not p.required and t is not None
        }
        return self.module(*required, **rest)


@dataclass(frozen=True)
class _Applied:
    """A function with its options given."""

    subject: Subject
    options: Mapping[str, Value]

    def __call__(self, *tensors: Any) -> Any:
        names = [p.name for p in self.subject.inputs]
        given: dict[str, Any] = {name: t for name, t in zip(names, tensors, strict=True) if t is not None}
        if listed := self.subject.listed():
            key = next(p.name for p in self.subject.tensors if p.kind is Kind.TENSORS)
            given[key] = [given.pop(name) for name in listed]
        given |= self.options
        positional, keywords = split_call(self.subject, given)
        starred = next((i for i, p in enumerate(self.subject.order) if p.starred), None)
        if starred is not None:
            positional[starred : starred + 1] = positional[starred]
        return self.subject.function(*positional, **keywords)


def split_call(subject: Subject, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Required arguments in front by position, all others by keyword."""
    positional: list[Any] = []
    rest = dict(given)
    for parameter in subject.order:
        if parameter.name not in rest or parameter.keyword_only or not parameter.required:
            break
        positional.append(rest.pop(parameter.name))
    return positional, rest


def module_of(made: Any) -> Any:
    """The ``nn.Module`` behind a callable that :meth:`Subject.build` gave, or ``None``."""
    if isinstance(made, _ByName):
        return made.module
    return made if hasattr(made, "state_dict") else None
