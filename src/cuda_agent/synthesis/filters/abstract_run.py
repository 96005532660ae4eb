"""Measurements without memory: the task on fake tensors (shapes and dtypes only), whatever its size."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.worker import Refused
from cuda_agent.runtime.candidate import construct
from cuda_agent.signature import describe_inputs
from cuda_agent.synthesis.dedupe.graph import rows_of
from cuda_agent.synthesis.filters.loaded import Loaded
from cuda_agent.synthesis.filters.tracing import Trace, trace

_DATA_DEPENDENT = ("DataDependent", "DynamicOutputShape", "UnsupportedFakeTensor", "UnsupportedOperator")


def abstract(task: Loaded) -> dict[str, Any]:
    """Shapes, bytes, operations, the graph, what executes and what is read; nothing is allocated.

    A task whose shapes or control flow depend on values cannot be run this way: ``why`` says so and the
    rest is missing.

    Raises:
        Refused: the task does not run for a reason of its own.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return _measured(task)
    except Exception as error:  # noqa: BLE001  task code may raise anything
        name = type(error).__name__
        if any(word in f"{name} {error}" for word in _DATA_DEPENDENT) or name == "NotImplementedError":
            return {"why": f"its shapes depend on values ({name})"}
        words = " ".join(str(error).split())[:300]
        raise Refused(FailureKind.TASK, f"it does not run on fake tensors: {name}: {words}") from None


def _measured(task: Loaded) -> dict[str, Any]:
    inputs = list(task.module.get_inputs())
    model = construct(task.module.Model, task.module.get_init_inputs()).eval()
    with FlopCounterMode(display=False) as counter:
        outputs = model(*inputs)
    made = list(leaves(outputs))
    state = list(model.state_dict().values())
    found = trace(model, inputs)
    return {
        "inputs": list(describe_inputs(inputs)),
        "outputs": list(describe_inputs(made)),
        "input_bytes": _nbytes(leaves(inputs)),
        "output_bytes": _nbytes(made),
        "state_bytes": _nbytes(state),
        "flops": int(counter.get_total_flops()),
        "training_random": any("dropout" in op.name or "rand" in op.name for op in found.ops),
        **trace_facts(found),
    }


def trace_facts(found: Trace) -> dict[str, Any]:
    """What a trace says, as facts: bytes, calls that count, what is read, the graph's rows."""
    read = found.read_leaves()
    return {
        "made_bytes": found.made_bytes,
        "moved_bytes": sum(op.nbytes for op in found.ops),
        "num_kernels": sum(op.nbytes > 0 for op in found.ops),
        "executed": found.executed(),
        "calls": [call.name for call in found.calls],
        "read_inputs": sorted(index for kind, index in read if kind == "input"),
        "read_state": sorted(name for kind, name in read if kind == "state"),
        "graph": rows_of(found),
    }


def _nbytes(tensors: Any) -> int:
    return sum(int(t.numel()) * t.element_size() for t in tensors)
