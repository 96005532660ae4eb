"""Admission: whether a task measures anything (docs/degenerate.md).

Each trivial answer (zeros, a constant, the output for another input, the output of other weights, the
input itself) is held against the reference as a candidate's output would be. One that passes makes the
task degenerate: "correct" says nothing there.

Covers: answers of :mod:`cuda_agent.judge.trivial`, in eval mode, on this device. Does not cover: train mode,
constants for each channel, answers that need a little work, parameters that change nothing.

Task code runs in the reference runner only; answers are made and compared here, from bytes it sent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cuda_agent.config import JudgeConfig
from cuda_agent.errors import TaskError
from cuda_agent.task import Task

LIMIT_S = 600.0
"""Seconds one task may take, unless said otherwise."""


class TrivialAnswer(StrEnum):
    """What a candidate could return instead of the work."""

    ZEROS = "zeros"
    """Zeros of the output's form."""
    MEAN = "mean"
    """One constant for each output tensor: the mean of the output for another input, same weights."""
    STALE = "stale"
    """The output for another input, same weights."""
    OTHER_WEIGHTS = "other_weights"
    """The output for this input of a model whose weights come from another seed."""
    IDENTITY = "identity"
    """An input, where need be reshaped, transposed, broadcast or cast."""


class Protocol(StrEnum):
    """Rules an answer is tried under."""

    KERNELBENCH = "kernelbench"
    """The task's own draws only, ``allclose`` with atol = rtol = 1e-2 (the paper; KernelBench to v0.1)."""
    KERNELBENCH_STRICT = "kernelbench_strict"
    """The same draws, 1e-4 (KernelBench's present float32 tolerance)."""
    JUDGE = "judge"
    """All of this judge's verification under the track asked for."""


@dataclass(frozen=True)
class Trial:
    """One trivial answer under one protocol.

    Attributes:
        passes: no check refused it; ``None``: it does not apply, or the task could not be tried to the end.
        margin: largest error over what is allowed (at most 1 passes; ``inf`` for a non-finite element on
            one side only), over the checks up to the one that refused it; ``None``: not tried.
        check: the check with that error.
        detail: why ``passes`` is ``None``, or a remark; may be empty.
    """

    passes: bool | None
    margin: float | None = None
    check: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Admission:
    """What the trivial answers came to on one task.

    Attributes:
        trials: by protocol and answer.
        reason: why the task could not be tried, or not to the end; empty otherwise.
        checks: the checks made, in order; none is made once every answer is refused.
        dropped: derived inputs that the reference raises on or is not finite on.
        inputs: of the first draw, in words.
    """

    trials: Mapping[Protocol, Mapping[TrivialAnswer, Trial]]
    reason: str = ""
    checks: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def passes(self) -> Mapping[TrivialAnswer, bool | None]:
        """Which answers pass all of this judge's verification."""
        return self.under(Protocol.JUDGE)

    @property
    def degenerate(self) -> bool:
        """Whether any answer passes all of this judge's verification."""
        return self.degenerate_under(Protocol.JUDGE)

    def under(self, protocol: Protocol) -> Mapping[TrivialAnswer, bool | None]:
        """Which answers pass under a protocol; empty where it was not tried."""
        return {answer: trial.passes for answer, trial in self.trials.get(protocol, {}).items()}

    def degenerate_under(self, protocol: Protocol) -> bool:
        """Whether any answer passes under a protocol."""
        return any(passes is True for passes in self.under(protocol).values())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types. An infinite margin becomes ``null`` (``passes`` is false then)."""
        data = dataclasses.asdict(self)
        for trials in data["trials"].values():
            for trial in trials.values():
                if trial["margin"] is not None and not math.isfinite(trial["margin"]):
                    trial["margin"] = None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Admission:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError, KeyError, TypeError: the data are of another form.
        """
        trials = {
            Protocol(protocol): {TrivialAnswer(name): _trial(trial) for name, trial in answers.items()}
            for protocol, answers in data["trials"].items()
        }
        return cls(
            trials,
            reason=data["reason"],
            checks=tuple(data["checks"]),
            dropped=tuple(data["dropped"]),
            inputs=tuple(data["inputs"]),
        )


def _trial(data: Mapping[str, Any]) -> Trial:
    trial = Trial(**data)
    refused = trial.passes is False and trial.margin is None
    return dataclasses.replace(trial, margin=math.inf) if refused else trial


def admit(
    task: Task,
    config: JudgeConfig | None = None,
    *,
    protocols: Iterable[Protocol] = tuple(Protocol),
    limit_s: float = LIMIT_S,
    seed: int = 0,
    leased: bool = False,
) -> Admission:
    """Try every trivial answer on a task, in a disposable process.

    A task that cannot be tried (it does not run, is no function of its inputs, does not fit, takes too
    long) is no error: what was not decided is ``None`` and ``reason`` says why.

    Args:
        task: the reference.
        config: track, precision, device and ``num_draws``.
        protocols: rules to try the answers under; fewer are faster.
        limit_s: seconds for the task; one step may take as long again.
        seed: of weights, draws and probes.
        leased: the caller holds the GPU's lease.

    Raises:
        InfrastructureError: our own side failed.
    """
    from cuda_agent.backends import resolve_device
    from cuda_agent.judge.admission_trials import Admitter, Trials
    from cuda_agent.judge.devices import choose_place
    from cuda_agent.judge.reference import Reference
    from cuda_agent.pool.lease import lease

    config = config or JudgeConfig()
    config = dataclasses.replace(config, run_limit_s=min(config.run_limit_s, limit_s / 2))
    place = choose_place(str(resolve_device(config.device)), config)
    trials, reason = Trials(tuple(protocols)), ""
    reference = Reference(task, config, place)
    try:
        reference.wait_ready()
        with (
            nullcontext() if leased or place.kind == "cpu" else lease(place.device),
            closing(Admitter(reference, config, place, trials=trials, limit_s=limit_s)) as admitter,
        ):
            admitter.run(seed)
    except TaskError as error:
        reason = error.cause
    finally:
        reference.close()
    return Admission(
        trials.results(reason),
        reason=reason,
        checks=tuple(trials.checks),
        dropped=tuple(trials.dropped),
        inputs=trials.inputs,
    )
