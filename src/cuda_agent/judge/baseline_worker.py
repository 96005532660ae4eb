"""Runs one task's baselines: task code only, disposable. Started as ``python baseline_worker.py FD``.

Compiling (``prepare``) may go on in many such processes at once; measuring (``measure``) happens in one at a
time, and draws its own inputs, so that a process that waits holds no memory for them.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from cuda_agent.judge import exchange
from cuda_agent.judge.baseline_forms import Cast, CastModel, Graphs, allow_tf32, compare
from cuda_agent.judge.baseline_names import KERNEL_SUMS, Line
from cuda_agent.judge.baseline_work import count_work, tf32_peak
from cuda_agent.judge.reference_worker import ReferenceWorker
from cuda_agent.judge.timing import kernel_times, make_timer, time_calls
from cuda_agent.judge.worker import import_file

_BLOCK_S = 0.06
_NUM_BLOCKS = 6
_MAX_CALLS = 100
_SETS_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
_MAX_SETS = 4
_SLOW_DRAW_S = 1.0
_HELD_BYTES = {"cpu": 256 << 20, "cuda": 8 << 30}
_NUM_DRAWS = 3
_KERNEL_WARM_UP, _KERNEL_CALLS = 5, 10
_REPLAYED = (Line.CUDA_GRAPH, Line.MAX_AUTOTUNE)
Call = Callable[[int], Any]


class BaselineWorker(ReferenceWorker):
    """Holds one task's module and the forms of it that are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[Line, Any] = {}
        self.handlers |= {
            "size": self._size,
            "prepare": self._prepare,
            "work": self._count,
            "agree": self._agree,
            "measure": self._measure,
            "tf32_peak": self._tf32_peak,
        }

    @property
    def _kind(self) -> str:
        return "cpu" if self.device == "cpu" else "cuda"

    def _size(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Bytes of the first case's inputs, drawn without memory; what fails here is told by ``load``."""
        sys.path[:0] = message["search_path"]
        try:
            with torch.device("meta"):
                return {"nbytes": _num_bytes(import_file("sized", message["path"]).get_inputs())}
        except (Exception, SystemExit):  # noqa: BLE001  task code may raise anything
            return {"nbytes": None}

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Build one line and run it once on every case; the first run compiles."""
        line = Line(message["line"])
        started = time.monotonic()
        if line is not Line.CUDA_GRAPH:
            self.forms[line] = self._form(line)
            with _flags(line):
                for case in range(message["num_cases"]):
                    self.forms[line](*self._draw_inputs(message["seed"] + case, case))
        self._settle_down()
        return {"seconds": time.monotonic() - started}

    def _form(self, line: Line) -> Any:
        """The module as this line runs it."""
        if line in (Line.EAGER, Line.EAGER_KERNEL):
            return self.model
        _many_shapes()
        model = self.model
        if line in (Line.COMPILE_FP16, Line.COMPILE_BF16):
            dtype = torch.float16 if line is Line.COMPILE_FP16 else torch.bfloat16
            model = Cast(model, self._kind, dtype, like=self._eager(0, 0))
        elif line in (Line.HALF, Line.BF16_MODEL):
            dtype = torch.float16 if line is Line.HALF else torch.bfloat16
            model = CastModel(model, dtype, like=self._eager(0, 0))
        mode = "max-autotune" if line is Line.MAX_AUTOTUNE else None
        return torch.compile(model, dynamic=False, mode=mode)

    def _eager(self, seed: int, case: int) -> Any:
        return self._forward(self._draw_inputs(seed, case), self.model)

    def _count(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Bytes and operations of a call of one case."""
        found = count_work(self.model, self._draw_inputs(message["seed"], message["case"]))
        self._settle_down()
        return dict(found)

    def _agree(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Largest error of a line's outputs against eager's, over what is allowed, on fresh draws."""
        line, worst = Line(message["line"]), 0.0
        for case in range(message["num_cases"]):
            for draw in range(_NUM_DRAWS):
                seed = message["seed"] + 1000 * (draw + 1)
                expected = self._eager(seed, case)
                with _flags(line):
                    found = self.forms[line](*self._draw_inputs(seed, case))
                worst = max(worst, compare(found, expected))
        self._settle_down()
        return {"worst": worst}

    def _measure(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Samples of each line on one case. A line that fails is told of; the others go on."""
        blocks = _Blocks(self.device, self._draw_sets(message["seed"], message["case"]))
        why: dict[str, str] = {}
        sums: dict[str, list[float]] = {}
        for line in map(Line, message["lines"]):
            try:
                call = self._call_of(line, blocks.sets)
                if line in KERNEL_SUMS:
                    sums[line] = _kernel_sums(call)
                else:
                    blocks.add(line, call)
            except Exception as error:  # whatever a line may raise costs that line
                if isinstance(error, torch.OutOfMemoryError) and not message["alone"]:
                    raise
                why[line] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        samples = {**blocks.run(), **sums}
        blocks.close()
        self._settle_down()
        return {"samples": samples, "why": why}

    def _draw_sets(self, seed: int, case: int) -> list[Any]:
        started = time.monotonic()
        first = self._draw_inputs(seed, case)
        num = max(2, min(_MAX_SETS, _SETS_BYTES[self._kind] // max(1, _num_bytes(first))))
        if time.monotonic() - started > _SLOW_DRAW_S:
            num = 2
        return [first, *(self._draw_inputs(seed + 1 + index, case) for index in range(num - 1))]

    def _call_of(self, line: Line, sets: Sequence[Any]) -> Call:
        if line is Line.CUDA_GRAPH:
            return Graphs(self.model, sets)
        form = self.forms[line]
        return lambda index: form(*sets[index])

    def _tf32_peak(self, _message: Mapping[str, Any]) -> dict[str, Any]:
        return {"flops": tf32_peak(self.device)}

    def _settle_down(self) -> None:
        """Wait for the device and give back what is not needed while other processes work."""
        gc.collect()
        if self._kind == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


class _Blocks:
    """Times lines in blocks, in random order, on input sets in turn.

    Args:
        device: the worker's.
        sets: input sets, at least two.
    """

    def __init__(self, device: str, sets: list[Any]) -> None:
        self.sets = sets
        self._kind = "cpu" if device == "cpu" else "cuda"
        self._timer = make_timer(device)
        self._lines: dict[Line, tuple[Call, int]] = {}
        self._held = 1

    def add(self, line: Line, call: Call) -> None:
        """Take a line in; runs it."""
        if line is Line.EAGER:  # as many outputs are held as the judge holds of a candidate
            room = _HELD_BYTES[self._kind] // max(1, _num_bytes(call(0)))
            self._held = max(1, min(8, room))
        us = min(self._samples(line, call, [0, 1, 0, 1]))
        us += 300.0 if self._kind == "cuda" else 0.0  # a flush and a wait go with every sample
        self._lines[line] = call, max(2, min(_MAX_CALLS, int(_BLOCK_S * 1e6 / max(us, 1e-3))))

    def run(self) -> dict[str, list[float]]:
        """Microseconds of every call, by line."""
        gc.collect()
        gc.freeze()  # the collections between blocks then cost nothing
        found: dict[str, list[float]] = {line: [] for line in self._lines}
        for _ in range(_NUM_BLOCKS):
            for line in random.sample(sorted(self._lines), len(self._lines)):
                call, num_calls = self._lines[line]
                order = [random.randrange(len(self.sets)) for _ in range(num_calls)]
                found[line] += self._samples(line, call, order)
        return found

    def _samples(self, line: Line, call: Call, order: Sequence[int]) -> list[float]:
        held = 1 if line in _REPLAYED else self._held  # those of a graph are overwritten anyway
        with _flags(line):
            samples, _ = time_calls(self._timer, call, order=order, warmup=min(3, len(order)), keep_last=held)
        return samples

    def close(self) -> None:
        """Let go of inputs and graphs."""
        self._lines.clear()
        self.sets.clear()
        gc.unfreeze()


def _kernel_sums(call: Call) -> list[float]:
    """Summed kernel time of ten calls after five, microseconds each (the paper's metric)."""
    for _ in range(_KERNEL_WARM_UP):
        call(0)
    sums, _ = kernel_times(lambda: call(0), _KERNEL_CALLS)
    if not any(sums):
        raise RuntimeError("the profiler saw no kernel")
    return sums


def _flags(line: Line) -> AbstractContextManager[None]:
    return allow_tf32() if line is Line.COMPILE_TF32 else nullcontext()


def _num_bytes(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in exchange.leaves(value))


def _many_shapes() -> None:
    """Every case has static shapes of its own: more of them than torch.compile allows by default."""
    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)


if __name__ == "__main__":
    BaselineWorker().serve()
