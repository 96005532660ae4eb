"""The judge's admission test inside the process that already holds the task.

:class:`cuda_agent.judge.admission_trials.Admitter` asks a reference for draws and outputs; here it asks this
process. Same checks, same comparison, no further process: a filter tries thousands of tasks, and none of
them is an adversary of the process that it is thrown away with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch

from cuda_agent.config import JudgeConfig
from cuda_agent.errors import TaskError
from cuda_agent.judge import exchange
from cuda_agent.judge.admission import Admission, Protocol
from cuda_agent.judge.admission_trials import Admitter, Trials
from cuda_agent.judge.devices import Place
from cuda_agent.judge.exchange import Block, Plan
from cuda_agent.judge.promote import run_in_float64
from cuda_agent.judge.reference import Drawn, Expected
from cuda_agent.judge.worker import Refused
from cuda_agent.signature import describe_inputs
from cuda_agent.synthesis.filters.loaded import Loaded


class LocalReference:
    """What :class:`cuda_agent.judge.reference.Reference` offers, without a process of its own."""

    def __init__(self, task: Loaded) -> None:
        self._task = task
        self.weights = (1.0,)
        self.state: dict[str, torch.Tensor] = {}
        self.load_plan: Plan = {}

    def load(self, seed: int) -> None:
        """Build the model."""
        del seed  # the process keeps one model
        self.state = dict(self._task.model().state_dict())
        self.load_plan = exchange.describe(self.state)

    def construct_other(self, seed: int) -> bool:
        """Build a second model of other weights; whether they are the same all the same."""
        other = self._task.model(seed + 1).state_dict()
        return all(torch.equal(tensor, other[name]) for name, tensor in self.state.items())

    def set_state(self, plan: Plan, block: Block) -> None:
        """Load parameters and buffers."""
        self._task.model().load_state_dict(exchange.read(plan, block))

    def draw(self, *, case: int, seed: int) -> Drawn:
        """Inputs of the task's own law."""
        del case
        inputs = self._task.draw(seed)
        plan = exchange.describe(inputs)
        block = Block(plan["nbytes"], device=self._task.device)
        exchange.write(inputs, plan, block)
        return Drawn(plan, block, tuple(describe_inputs(inputs)))

    def run(self, drawn: Drawn, *, float64: bool, check: bool = False) -> Expected:
        """Expected outputs."""
        del check  # filters before this one have seen to that
        return self._run(drawn, self._task.model(), float64=float64)

    def run_other(self, drawn: Drawn) -> Expected:
        """What the model of other weights gives."""
        return self._run(drawn, self._task.model(2), float64=False)

    def _run(self, drawn: Drawn, model: Any, *, float64: bool) -> Expected:
        inputs = exchange.read(drawn.plan, drawn.block, copy=True)
        outputs = self._task.run(inputs, model)
        outputs64, why = None, ""
        if float64:
            outputs64, why = _wide_outputs(model, exchange.read(drawn.plan, drawn.block, copy=False))
        return Expected(
            plan=exchange.describe(outputs),
            outputs=outputs,
            outputs64=outputs64,
            changed={},
            finite=all(bool(torch.isfinite(leaf).all()) for leaf in outputs),
            why64=why,
            shared=False,
            block=Block(0, device="cpu"),
        )


def _wide_outputs(model: Any, inputs: Any) -> tuple[Any, str]:
    try:
        with torch.no_grad():
            return list(exchange.leaves(run_in_float64(model, inputs))), ""
    except Exception as error:  # noqa: BLE001  a task may refuse float64 in any way
        return None, f"no float64 reference ({type(error).__name__}): compared with eager"


def admit_here(task: Loaded, *, num_threads: int, limit_s: float) -> Mapping[str, Any]:
    """The admission test on a loaded task, under all protocols, as facts.

    The model's state is changed; nothing else should be measured on it afterwards.
    """
    kind = "cpu" if task.device == "cpu" else "cuda"
    place = Place(kind, task.device, task.device, "host" if kind == "cpu" else "device", num_threads)
    config = dataclasses.replace(JudgeConfig(), num_draws=2)
    trials, reason = Trials(tuple(Protocol)), ""
    try:
        admitter = Admitter(
            cast(Any, LocalReference(task)),  # it has the methods that an Admitter uses
            config,
            place,
            trials=trials,
            limit_s=limit_s,
        )
        admitter.run(seed=0)
    except (TaskError, Refused) as error:
        reason = str(error)
    admission = Admission(trials.results(reason), reason=reason)
    passing = {
        str(protocol): [str(answer) for answer, passes in admission.under(protocol).items() if passes]
        for protocol in Protocol
    }
    margins = {str(answer): _least(admission, answer) for answer in next(iter(admission.trials.values()), {})}
    return {"passing": passing, "reason": reason, "margins": margins}


def _least(admission: Admission, answer: Any) -> float | None:
    """The least margin of an answer over the protocols, where it was tried."""
    found = [
        trials[answer].margin for trials in admission.trials.values() if trials[answer].margin is not None
    ]
    least = min((margin for margin in found if margin is not None), default=None)
    return None if least is None else min(least, 1e30)
