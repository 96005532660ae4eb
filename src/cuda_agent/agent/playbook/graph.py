"""The captured graph as plain data; the inverse of :mod:`cuda_agent.agent.playbook.capture`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agent.playbook.ir import Unsupported


@dataclass(frozen=True)
class GraphInput:
    """A tensor that exists before the call.

    Attributes:
        name: in the graph.
        kind: ``input``, ``param``, ``buffer`` or ``const``.
        path: of an input: argument index or name, then keys into nested containers.
        target: of the others: attribute path on the module.
        value: of a constant that forward makes itself: its number.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    path: tuple[Any, ...] = ()
    target: str = ""
    value: float | int | bool | None = None


@dataclass(frozen=True)
class GraphOp:
    """One captured operator; ``shape`` is ``None`` for those with several results."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Ref:
    """A reference to a value by name."""

    name: str


@dataclass
class Case:
    """The graph for one input case.

    Attributes:
        weight: share of calls with this shape.
        fixed: arguments that are not tensors: (path, repr).
        tree: the output's structure, leaves ``{"v": name}`` or ``{"c": constant}``.
    """

    weight: float
    inputs: list[GraphInput] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    fixed: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)
    tree: Any = None


@dataclass(frozen=True)
class StateEntry:
    """A parameter or buffer by its state_dict key."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    persistent: bool


@dataclass
class Captured:
    """Everything captured of a module."""

    cases: list[Case] = field(default_factory=list)
    state: list[StateEntry] = field(default_factory=list)


def parse(lines: Iterable[str]) -> Captured:
    """Read captured lines.

    Raises:
        Unsupported: the capture was refused; the reason is the cause.
    """
    captured = Captured()
    for line in lines:
        record = json.loads(line)
        kind = record.pop("t")
        if kind == "refused":
            raise Unsupported(record["why"])
        if kind == "case":
            captured.cases.append(Case(record["weight"]))
        elif kind == "state":
            captured.state.append(StateEntry(**{**record, "shape": tuple(record["shape"])}))
        else:
            _add(captured.cases[-1], kind, record)
    return captured


def _add(case: Case, kind: str, record: dict[str, Any]) -> None:
    if kind == "in":
        case.inputs.append(
            GraphInput(
                name=record["name"],
                kind=record["kind"],
                shape=tuple(record["shape"]),
                dtype=record["dtype"],
                strides=tuple(record["strides"]),
                path=tuple(record["path"] or ()),
                target=record["target"] or "",
                value=record.get("value"),
            )
        )
    elif kind == "fixed":
        case.fixed.append((tuple(record["path"]), record["value"]))
    elif kind == "op":
        shape = record.get("shape")
        case.ops.append(
            GraphOp(
                name=record["name"],
                op=record["op"],
                args=tuple(_decode(record["args"])),
                kwargs=_decode(record["kw"]),
                shape=None if shape is None else tuple(shape),
                dtype=record.get("dtype", ""),
            )
        )
    else:
        case.tree = record["tree"]


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if isinstance(value, dict):
        if set(value) == {"v"}:
            return Ref(value["v"])
        if set(value) == {"d"}:
            return value["d"]
        return {k: _decode(v) for k, v in value.items()}
    return value
