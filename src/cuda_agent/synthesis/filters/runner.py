"""One task through the filters: measure what the next predicate needs, ask it, stop at the first no."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.synthesis.filters.client import Client, TaskFailed
from cuda_agent.synthesis.filters.predicates import PREDICATES, TIME_SPREAD, Cost, Predicate
from cuda_agent.synthesis.filters.resize import resized
from cuda_agent.synthesis.record import Form, TaskRecord
from cuda_agent.synthesis.target import Compile, Target

_MAX_SIZES = 6
_MAX_TIMINGS = 3


@dataclass(frozen=True)
class Outcome:
    """What the filters say of one task.

    Attributes:
        record: with facts; resized where it had to be.
        failed: name of the predicate that refused it; empty: accepted.
        detail: why.
        margins: of the predicates that have a number.
    """

    record: TaskRecord
    failed: str = ""
    detail: str = ""
    margins: Mapping[str, float] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """All predicates hold."""
        return not self.failed


class Runner:
    """Takes tasks through the predicates with one worker.

    Args:
        small: worker for what needs no device (a CPU).
        device: worker on the target; the same one where the target is the CPU.
        target: limits and window.
        alone: held while something is timed.
        stop_after: dearest kind of predicate to ask.
    """

    def __init__(
        self,
        small: Client,
        device: Client,
        target: Target,
        *,
        alone: threading.Lock,
        stop_after: Cost = Cost.DEVICE,
    ) -> None:
        self._small, self._device, self._target = small, device, target
        self._alone = alone
        self._stop_after = stop_after
        self._opened: tuple[Client, str] | None = None
        self._measures: dict[str, Callable[[TaskRecord], TaskRecord]] = {
            "eager": self._eager,
            "compiled": self._compiled,
            "admission_small": self._admission_small,
            "admission": self._admission,
            "traced": self._traced,
        }

    def check(self, record: TaskRecord) -> Outcome:
        """Ask the predicates in order.

        Raises:
            InfrastructureError: no worker can be started.
        """
        self._opened = None
        margins: dict[str, float] = {}
        for predicate in PREDICATES:
            if predicate.cost > self._stop_after:
                break
            try:
                record = self._with_facts(record, predicate)
            except TaskFailed as failure:
                return Outcome(record, predicate.name, str(failure), margins)
            verdict = predicate.check(record, self._target)
            if verdict.value is not None:
                margins[predicate.name] = verdict.value
            if not verdict.ok:
                return Outcome(record, predicate.name, verdict.detail, margins)
        return Outcome(record, margins=margins)

    def _with_facts(self, record: TaskRecord, predicate: Predicate) -> TaskRecord:
        if not predicate.needs or predicate.needs in record.facts:
            return record
        measure = self._measures.get(predicate.needs)
        if measure is not None:
            return measure(record)
        form = Form.SHIPPED if predicate.cost is Cost.ABSTRACT else Form.SMALL
        self._open(self._small, record, form)
        facts = self._small.measure(predicate.needs, limit_s=self._target.task_limit_s)
        return _added(record, predicate.needs, facts)

    def _open(self, client: Client, record: TaskRecord, form: Form) -> None:
        code = record.code_at(form)
        if self._opened != (client, code):
            self._opened = None
            client.open(code, limit_s=self._target.task_limit_s)
            self._opened = (client, code)

    # -- measurements with a plan of their own ------------------------------------------------

    def _traced(self, record: TaskRecord) -> TaskRecord:
        """The trace on real tensors, only where fake ones could not give it."""
        if "executed" in record.facts["abstract"]:
            return _added(record, "traced", {})
        self._open(self._small, record, Form.SMALL)
        facts = self._small.measure("traced", limit_s=self._target.task_limit_s)
        return _added(record, "traced", facts)

    def _admission_small(self, record: TaskRecord) -> TaskRecord:
        return self._admit(record, self._small, Form.SMALL, "admission_small")

    def _admission(self, record: TaskRecord) -> TaskRecord:
        if record.code == record.code_at(Form.SMALL) and self._small is self._device:
            return _added(record, "admission", record.facts["admission_small"])
        return self._admit(record, self._device, Form.SHIPPED, "admission")

    def _admit(self, record: TaskRecord, client: Client, form: Form, name: str) -> TaskRecord:
        self._open(client, record, form)
        limit_s = self._target.task_limit_s
        facts = client.measure("admission", limit_s=2 * limit_s, options={"limit_s": limit_s})
        self._opened = None  # the test moves the model's weights
        return _added(record, name, facts)

    def _eager(self, record: TaskRecord) -> TaskRecord:
        """Eager's time at the shipped sizes, which are changed until it lies in the window."""
        before = record
        for _ in range(_MAX_SIZES):
            facts = self._timed(record)
            low, high = self._target.window_us
            if low <= facts["median_us"] <= high:
                break
            other = resized(record, facts["median_us"], self._target.window_us)
            if other is None:
                break
            record = other
        else:
            facts = self._timed(record)
        if record.code != before.code:
            self._open(self._small, record, Form.SHIPPED)
            abstract = self._small.measure("abstract", limit_s=self._target.task_limit_s)
            record = _added(record, "abstract", abstract)
        return _added(record, "eager", {**facts, "resized": record.code != before.code})

    def _timed(self, record: TaskRecord) -> dict[str, Any]:
        """Timed alone; again where the samples spread."""
        self._open(self._device, record, Form.SHIPPED)
        target, best = self._target, None
        for _ in range(_MAX_TIMINGS):
            with self._alone:
                facts = self._device.measure(
                    "eager",
                    limit_s=target.task_limit_s,
                    options={"num_samples": target.num_samples, "limit_us": target.window_us[1]},
                )
            found = {**facts, **_summary(facts["eager_us"])}
            if best is None or found["spread"] < best["spread"]:
                best = found
            if best["spread"] <= TIME_SPREAD:
                break
        assert best is not None
        del best["eager_us"]
        return best

    def _compiled(self, record: TaskRecord) -> TaskRecord:
        """Compiled beside other tasks, timed alone."""
        target = self._target
        self._open(self._device, record, Form.SHIPPED)
        facts = dict(
            self._device.measure(
                "compiled", limit_s=5 * target.task_limit_s, options={"backend": str(target.compile)}
            )
        )
        if facts["agrees"] and target.compile is Compile.INDUCTOR:
            with self._alone:
                timed = self._device.measure(
                    "compile_time", limit_s=target.task_limit_s, options={"num_samples": target.num_samples}
                )
            facts |= _summary(timed["compile_us"])
        if facts["agrees"]:
            facts["vendor_share"] = self._device.measure("vendor", limit_s=target.task_limit_s)["share"]
        return _added(record, "compiled", facts)


def _summary(samples: list[float]) -> dict[str, float]:
    """Median and spread of times, microseconds."""
    ordered = sorted(samples)
    median = ordered[len(ordered) // 2]
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return {"median_us": round(median, 2), "spread": round((high - low) / 2 / median, 4), "num": len(samples)}


def _added(record: TaskRecord, name: str, facts: Mapping[str, Any]) -> TaskRecord:
    return dataclasses.replace(record, facts={**record.facts, name: dict(facts)})
