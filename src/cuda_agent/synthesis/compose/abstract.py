"""Shapes of a seed's outputs by running it on fake tensors: nothing is allocated."""

from __future__ import annotations

import linecache
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import Value


@dataclass(frozen=True)
class Made:
    """What a seed gives for shapes.

    Attributes:
        shape, dtype: of the first tensor.
        num_outputs: tensors or containers that forward returns; 1 for a plain tensor.
    """

    shape: tuple[int, ...]
    dtype: str
    num_outputs: int


def apply(
    seed: Seed, arguments: Mapping[str, Value], shapes: Sequence[tuple[tuple[int, ...], str] | None]
) -> Made | None:
    """Run a seed on fake tensors.

    Args:
        seed: its source is run in this process: it is mined from installed libraries.
        arguments: of its constructor.
        shapes: (shape, dtype) of each input; ``None`` where one is left out.

    Returns:
        What it gives; ``None`` where it refuses these shapes.
    """
    try:
        with FakeTensorMode(), torch.no_grad():
            inputs = [_fake(spec) for spec in shapes]
            while inputs and inputs[-1] is None:
                inputs.pop()
            given = seed_class(seed)(**arguments).eval()(*inputs)
    except Exception:  # noqa: BLE001  an operator may refuse shapes in any way
        return None
    found = list(leaves(given))
    if not found or any(size == 0 for leaf in found for size in leaf.shape):
        return None
    number = 1 if isinstance(given, torch.Tensor) else len(given)
    return Made(tuple(int(size) for size in found[0].shape), str(found[0].dtype)[6:], number)


def _fake(spec: tuple[tuple[int, ...], str] | None) -> torch.Tensor | None:
    return None if spec is None else torch.zeros(spec[0], dtype=getattr(torch, spec[1]))


def seed_class(seed: Seed) -> Any:
    """The class of a seed, made from its source."""
    return _namespace(seed.id, seed.source)[seed.class_name]


@lru_cache(maxsize=2048)
def _namespace(name: str, source: str) -> dict[str, Any]:
    return run_source(source, f"seed {name}")


def run_source(source: str, name: str) -> dict[str, Any]:
    """The names that a source defines; the text stays readable to ``inspect``."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(name.replace(" ", "_"))
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__
