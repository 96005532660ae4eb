"""Sizes for a task: a small form, and a first guess of the shipped one from what fake tensors cost."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.compose.abstract import run_source
from cuda_agent.synthesis.compose.plan import Dim, Plan
from cuda_agent.synthesis.filters.tracing import trace
from cuda_agent.synthesis.target import Target

_BATCH = re.compile(r"(?i)^(batch|num_(graphs|samples))")
_PLANE = re.compile(r"(?i)(height|width|depth)")
_LINE = re.compile(r"(?i)(length|seq|steps|time|tokens|rows|cols)")

_SMALL = {"batch": (2, 3, 4), "plane": (12, 16, 20), "line": (16, 24, 32), "other": (12, 16, 24, 32)}
_SHIPPED = {
    "batch": (8, 16, 32, 64, 128),
    "plane": (28, 32, 48, 56, 64, 96, 112, 128),
    "line": (128, 256, 512, 1024, 2048),
    "other": (64, 96, 128, 256, 384, 512, 768, 1024),
}
_SHIPPED_DEEP = (16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Cost:
    """What one eager run moves, computes and holds."""

    num_bytes: int
    flops: int
    num_kernels: int
    input_bytes: int
    total_bytes: int

    def estimate_us(self, target: Target) -> float:
        """A rough eager time on a target."""
        return target.estimate_us(self.num_bytes, self.flops, self.num_kernels)

    def fits(self, target: Target) -> bool:
        """Whether memory holds it."""
        return self.total_bytes <= target.max_bytes and self.input_bytes <= target.max_input_bytes


def kind_of(dim: Dim) -> str:
    """What a size is, by its name: ``batch``, ``plane``, ``line`` or ``other``."""
    if _BATCH.match(dim.name):
        return "batch"
    if dim.argument:
        return "other"
    return "plane" if _PLANE.search(dim.name) else "line" if _LINE.search(dim.name) else "other"


def draw_sizes(plan: Plan, rng: random.Random, *, small: bool) -> dict[str, int]:
    """Values for a plan's size constants: round numbers that every use allows."""
    rank = max((len(tensor.axes) for tensor in (*plan.inputs, *plan.results)), default=2)
    plane = rng.choice(_SHIPPED["plane"])
    chosen: dict[str, int] = {}
    for name, dim in plan.dims.items():
        kind = kind_of(dim)
        options = _SMALL[kind] if small else _SHIPPED[kind]
        if not small and kind == "other" and rank >= 4:
            options = _SHIPPED_DEEP
        square = kind == "plane" and not small and rng.random() < 0.7
        wanted = plane if square else rng.choice(options)
        chosen[name] = dim.probes[0] if dim.fixed else _nearest(dim, wanted)
    return chosen


def _nearest(dim: Dim, wanted: int) -> int:
    step = dim.multiple_of
    least = -(-max(dim.least, 1) // step) * step
    value = max(least, round(wanted / step) * step)
    return value if dim.most is None else min(value, max(least, dim.most // step * step))


def is_free(plan: Plan, dim: Dim) -> bool:
    """Whether a size may change on its own when a task is resized: batches and lengths, else whatever may."""
    if dim.fixed or dim.argument:
        return False
    has_batch = any(kind_of(other) == "batch" and not other.argument for other in plan.dims.values())
    return kind_of(dim) != "other" or not has_batch


def cost_of(code: str) -> Cost | None:
    """Bytes and operations of a task at the sizes in its source; ``None`` where it does not run."""
    try:
        names = run_source(code, "composed task")
        with FakeTensorMode(), torch.no_grad():
            return _counted(names)
    except Exception:  # noqa: BLE001  composed code may fail in any way; the filters say how
        return None


def _counted(names: Mapping[str, Any]) -> Cost:
    inputs = list(names["get_inputs"]())
    model = names["Model"](*names["get_init_inputs"]()).eval()
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    found = trace(model, inputs)
    input_bytes = _nbytes(leaves(inputs))
    return Cost(
        num_bytes=sum(op.nbytes for op in found.ops),
        flops=int(counter.get_total_flops()),
        num_kernels=sum(op.nbytes > 0 for op in found.ops),
        input_bytes=input_bytes,
        total_bytes=input_bytes + _nbytes(model.state_dict().values()) + found.made_bytes,
    )


def _nbytes(tensors: Any) -> int:
    return sum(int(t.numel()) * t.element_size() for t in tensors)
