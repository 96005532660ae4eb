"""Names of size constants as a person would choose them, and their order. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from cuda_agent.synthesis.compose.plan import Axis, Plan, Step, Tensor

_FIRST = ("batch_size",)
_INNER = ("hidden", "inner", "mid", "deep")
_OUT = re.compile(r"^out_(\w+?)\d*$")


def well_named(plan: Plan) -> Plan:
    """The plan with its batch first, and ``out_x``, ``out_x2`` as ``hidden_x``, ``out_x``."""
    names = _new_names(list(plan.dims))
    order = sorted(plan.dims, key=lambda name: name not in _FIRST)
    return Plan(
        dims={names[name]: replace(plan.dims[name], name=names[name]) for name in order},
        inputs=tuple(_tensor(tensor, names) for tensor in plan.inputs),
        steps=tuple(_step(step, names) for step in plan.steps),
        results=tuple(_tensor(tensor, names) for tensor in plan.results),
        dtype=plan.dtype,
    )


def _new_names(names: list[str]) -> dict[str, str]:
    """Of several outputs' sizes only the last one is called ``out``."""
    stems: dict[str, list[str]] = {}
    for name in names:
        if match := _OUT.match(name):
            stems.setdefault(match[1], []).append(name)
    new = {name: name for name in names}
    for stem, members in stems.items():
        inner = [f"{prefix}_{stem}" for prefix in _INNER]
        if 1 < len(members) <= len(inner) and not set(inner) & set(names):
            new |= dict(zip(members, [*inner[: len(members) - 1], f"out_{stem}"], strict=True))
    return new


def _text(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


def _tensor(tensor: Tensor, names: Mapping[str, str]) -> Tensor:
    axes = tuple(Axis(_text(axis.text, names), axis.values) for axis in tensor.axes)
    return replace(tensor, axes=axes, low=_text(tensor.low, names), high=_text(tensor.high, names))


def _step(step: Step, names: Mapping[str, str]) -> Step:
    return replace(
        step,
        sizes={size: _text(text, names) for size, text in step.sizes.items()},
        others=tuple(_tensor(o, names) if isinstance(o, Tensor) else o for o in step.others),
    )
