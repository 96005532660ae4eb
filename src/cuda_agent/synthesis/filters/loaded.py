"""A task loaded in a worker's process: module, model, draws, on real or fake tensors."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_agent.judge.exchange import leaves
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.probes import perturb_state
from cuda_agent.judge.worker import Refused, import_file
from cuda_agent.runtime.candidate import construct


class Loaded:
    """One task's source as a module; models and inputs are made on request.

    Args:
        path: of the source.
        device: ``cpu`` or ``cuda:N``.

    Raises:
        Refused: the source does not import.
    """

    def __init__(self, path: Path, device: str) -> None:
        self.device = device
        with _task_errors("the module does not import"):
            self.module = import_file("synth_task", str(path))
        self.compiled: Any = None
        self._models: dict[int, Any] = {}

    def model(self, seed: int = 0) -> Any:
        """The model in eval mode; one for each seed of its weights."""
        if seed not in self._models:
            torch.manual_seed(seed)
            with _task_errors("Model(*get_init_inputs()) raised"):
                made = construct(self.module.Model, self.module.get_init_inputs())
                self._models[seed] = made.eval().requires_grad_(False).to(self.device)
        return self._models[seed]

    def moved_model(self) -> Any:
        """A copy with parameters and buffers moved away from their defaults, as verification does."""
        moved = copy.deepcopy(self.model())
        state = perturb_state(moved.state_dict(), torch.Generator().manual_seed(1))
        moved.load_state_dict(state)
        return moved

    def draw(self, seed: int) -> list[Any]:
        """Inputs of the task's own law."""
        torch.manual_seed(seed)
        with _task_errors("get_inputs() raised"), torch.device(self.device):
            inputs = list(self.module.get_inputs())
        return [_moved(item, self.device) for item in inputs]

    def run(self, inputs: Sequence[Any], model: Any = None) -> list[Tensor]:
        """Output tensors for copies of the inputs."""
        with _task_errors("forward() raised"), torch.no_grad():
            given = (model or self.model())(*copy.deepcopy(list(inputs)))
        found = list(leaves(given))
        if not found or not any(leaf.numel() for leaf in found):
            raise Refused(FailureKind.TASK, "forward() returned no tensor with something in it")
        return found


@contextmanager
def _task_errors(what: str) -> Iterator[None]:
    """What a task's code raises is the task's fault; want of memory is told apart."""
    try:
        yield
    except (Refused, torch.OutOfMemoryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  task code may raise anything
        words = " ".join(str(error).split())[:300]
        raise Refused(FailureKind.TASK, f"{what}: {type(error).__name__}: {words}") from None


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return value


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest error over the outputs, relative to each output's own spread (``inf`` for another form).

    |a - e| at its largest, over the standard deviation of e, or over its largest value where it has none.
    """
    worst = 0.0
    for a, e in zip(actual, expected, strict=False):
        if (a.shape, a.dtype) != (e.shape, e.dtype):
            return math.inf
        if a.numel():
            worst = max(worst, _relative(_wide(a), _wide(e)))
    return worst


def _relative(a: Tensor, e: Tensor) -> float:
    error = (a - e).abs().nan_to_num(nan=0.0, posinf=math.inf).max().item()
    finite = e[torch.isfinite(e)]
    spread = float(finite.std(correction=0).item()) if finite.numel() > 1 else 0.0
    scale = spread or float(finite.abs().max().item() if finite.numel() else 0.0) or 1.0
    return float(error) / scale


def _wide(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()).double() if tensor.is_complex() else tensor.double()
