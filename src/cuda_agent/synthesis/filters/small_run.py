"""Measurements on real tensors at the small sizes: behaviour, sensitivity. No compiler."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.judge.exchange import leaves
from cuda_agent.judge.promote import to_float64
from cuda_agent.judge.trivial import unit_error
from cuda_agent.synthesis.filters.loaded import Loaded, relative_error
from cuda_agent.synthesis.filters.tracing import Trace, trace


def behaviour(task: Loaded) -> dict[str, Any]:
    """Whether the task is a function of its inputs, alike in train and eval, finite, not constant."""
    task.model()  # its weights are drawn, which is no randomness of forward
    inputs = task.draw(1)
    before = torch.random.get_rng_state()
    outputs = task.run(inputs)
    drew = not torch.equal(before, torch.random.get_rng_state())
    again = task.run(inputs)
    kept = copy.deepcopy(inputs)
    with torch.no_grad():
        task.model()(*kept)
    return {
        "random": drew or relative_error(again, outputs) > 1e-5,
        "by_mode": _train_error(task, inputs, outputs) > 1e-4,
        "finite": all(bool(torch.isfinite(leaf).all()) for leaf in outputs if leaf.is_floating_point()),
        "spread": min(_spread(leaf) for leaf in outputs),
        "changes_inputs": _changed(inputs, kept),
        "dtypes": sorted({str(leaf.dtype)[6:] for leaf in outputs}),
    }


def _train_error(task: Loaded, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> float:
    training = copy.deepcopy(task.model()).train()
    torch.manual_seed(3)
    return relative_error(task.run(inputs, training), outputs)


def _spread(leaf: Tensor) -> float:
    """Standard deviation over the largest value: 0 for a constant; 1 for a single number."""
    wide = (torch.view_as_real(leaf) if leaf.is_complex() else leaf).double()
    wide = wide[torch.isfinite(wide)]
    if leaf.numel() == 1:
        return 1.0
    if wide.numel() < 2:
        return 0.0
    largest = float(wide.abs().max().item())
    return float(wide.std().item()) / largest if largest else 0.0


def _changed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    pairs = zip(leaves(list(before)), leaves(list(after)), strict=True)
    return any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def sensitivity(task: Loaded) -> dict[str, Any]:
    """How far each input and each parameter moves the output, over tolerance or spread.

    Inputs: replaced by another draw, error over 1e-2 (the loosest tolerance of a protocol). Parameters and
    floating buffers: replaced by moved values, error relative to the output's spread, on the moved model, in
    float64 where it runs there.
    """
    first, second = task.draw(1), task.draw(2)
    moved = task.moved_model()
    base, base_moved = task.run(first), task.run(first, moved)
    inputs = {}
    for index, _ in enumerate(leaves(list(first))):
        mixed = _with_leaf(first, second, index)
        errors = [
            max(unit_error(a, e) for a, e in zip(task.run(mixed, model), expected, strict=True))
            for model, expected in ((None, base), (moved, base_moved))
        ]
        inputs[str(index)] = min(max(errors) / 1e-2, 1e30)
    return {"inputs": inputs, "state": _state_effects(task, first)}


def _state_effects(task: Loaded, inputs: Sequence[Any]) -> dict[str, float]:
    """By name: error when this tensor alone is put back to its default, everything else moved."""
    model, moved = task.model(), task.moved_model()
    state, original = moved.state_dict(), model.state_dict()
    wide, given = _widened(task, moved, inputs)
    base = task.run(given, wide)
    effects = {}
    for name, tensor in state.items():
        if not (tensor.is_floating_point() or tensor.is_complex()) or torch.equal(tensor, original[name]):
            continue
        probe = copy.deepcopy(wide)
        probe.load_state_dict({**wide.state_dict(), name: original[name]})
        effects[name] = min(relative_error(task.run(given, probe), base), 1e30)
    return effects


def _widened(task: Loaded, model: Any, inputs: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The model and inputs in float64 where that runs."""
    wide, given = copy.deepcopy(model).double(), to_float64(list(inputs))
    try:
        task.run(given, wide)
    except Exception:  # noqa: BLE001  code that names float32 may refuse in any way
        return model, inputs
    return wide, given


def _with_leaf(first: Sequence[Any], second: Sequence[Any], index: int) -> list[Any]:
    """``first`` with one leaf taken from ``second``."""
    count = -1

    def pick(a: Any, b: Any) -> Any:
        nonlocal count
        if isinstance(a, Tensor):
            count += 1
            return b if count == index else a
        if isinstance(a, list | tuple):
            return type(a)(pick(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, Mapping):
            return {key: pick(a[key], b[key]) for key in a}
        return a

    return [pick(a, b) for a, b in zip(first, second, strict=True)]


def real_trace(task: Loaded) -> Trace:
    """The trace on real tensors, for tasks that fake ones cannot run."""
    return trace(task.model(), task.draw(1))
