"""The filters: pure predicates over a task's source and what was measured of it, cheapest first.

Each has a name, a threshold and a reason. Nothing is run here: facts come from the workers
(:mod:`cuda_agent.synthesis.filters.runner`), and the same facts give the same verdict.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from cuda_agent.errors import TaskError
from cuda_agent.synthesis.filters.small_run_rules import dead_rule
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.target import Target
from cuda_agent.synthesis.words import key_of, words

MAX_OPS = 5
"""Operators of a torch task (the paper: at most 5)."""
INPUT_EFFECT = 1.0
"""Least error, over the tolerance of 1e-2, when one input alone is replaced."""
STATE_EFFECT = 1e-4
"""Least error, relative to the output's spread, when one parameter alone is replaced."""
NO_STATE_EFFECT = 1e-9
"""Below this a parameter has no effect in float64: it is dead by algebra, not by rounding."""
MIN_SPREAD = 1e-4
"""Least spread of an output over its largest value."""
TIME_SPREAD = 0.15
"""Largest spread of eager's time: half the distance of the 10th and 90th percentile over the median."""

_MODULES = words(
    "torch math typing collections functools itertools dataclasses enum __future__ copy warnings"
)


class Cost(IntEnum):
    """What a predicate needs, cheapest first."""

    STATIC = 0
    ABSTRACT = 1
    SMALL = 2
    DEVICE = 3


@dataclass(frozen=True)
class Verdict:
    """One predicate's answer.

    Attributes:
        ok: the task stays.
        value: what was held against the threshold, where it is a number.
        detail: why it goes; may list what is exempt when it stays.
    """

    ok: bool
    value: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Predicate:
    """One filter.

    Attributes:
        name: as counted in the table.
        cost: see :class:`Cost`.
        needs: the measurement it reads; empty: the source alone.
        threshold: in words.
        reason: why it is there.
        check: pure.
    """

    name: str
    cost: Cost
    needs: str
    threshold: str
    reason: str
    check: Callable[[TaskRecord, Target], Verdict]


# -- the source ---------------------------------------------------------------------------------


def _parses(record: TaskRecord, _: Target) -> Verdict:
    try:
        record.task().check_names()
    except TaskError as error:
        return Verdict(False, detail=error.cause)
    return Verdict(True)


def _self_contained(record: TaskRecord, _: Target) -> Verdict:
    foreign = set()
    for node in ast.walk(ast.parse(record.code)):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            foreign.add((node.module or ".").split(".")[0])
    foreign -= _MODULES
    return Verdict(not foreign, detail=f"imports {', '.join(sorted(foreign))}" if foreign else "")


def _few_ops(record: TaskRecord, _: Target) -> Verdict:
    count = len(record.ops)
    limit = MAX_OPS if record.data_source.startswith("torch") else 4 * MAX_OPS
    return Verdict(1 <= count <= limit, count, f"declares {count} operators")


def _spellings(name: str) -> set[str]:
    """How a call may spell an operator: ``conv2d`` and ``Conv2d``; ``a.b`` of a class's method."""
    return {key_of(name), key_of(name).removeprefix("_")}


def _ops_execute(record: TaskRecord, _: Target) -> Verdict:
    left = [key_of(name) for name in _graph(record)["executed"]]
    missing = []
    for op in record.ops:
        found = next((name for name in left if name in _spellings(op)), None)
        if found is None:
            missing.append(op)
    return Verdict(not missing, len(missing), f"declared, not run: {', '.join(missing)}" if missing else "")


# -- on fake tensors ----------------------------------------------------------------------------


def _graph(record: TaskRecord) -> Any:
    """Facts of the trace, from fake tensors or from real ones."""
    abstract = record.facts["abstract"]
    return abstract if "executed" in abstract else record.facts["traced"]


def _fits(record: TaskRecord, target: Target) -> Verdict:
    facts = record.facts["abstract"]
    if "input_bytes" not in facts:
        return Verdict(True, detail="unknown before it runs")
    total = facts["input_bytes"] + facts["state_bytes"] + facts["made_bytes"]
    ok = total <= target.max_bytes and facts["input_bytes"] <= target.max_input_bytes
    return Verdict(ok, total, f"{total / 2**30:.2f} GiB, inputs {facts['input_bytes'] / 2**30:.2f} GiB")


def _reads_all(record: TaskRecord, _: Target) -> Verdict:
    facts, abstract = _graph(record), record.facts["abstract"]
    num_inputs = len(abstract.get("inputs", facts["read_inputs"]))
    unread = [f"input {i}" for i in range(num_inputs) if i not in facts["read_inputs"]]
    return Verdict(not unread, len(unread), f"not read: {', '.join(unread)}" if unread else "")


# -- small runs ---------------------------------------------------------------------------------


def _not_random(record: TaskRecord, _: Target) -> Verdict:
    return Verdict(not record.facts["behaviour"]["random"], detail="two calls differ, or draw random numbers")


def _mode_as_stated(record: TaskRecord, _: Target) -> Verdict:
    by_mode = record.facts["behaviour"]["by_mode"]
    return Verdict(record.by_mode or not by_mode, detail="train and eval mode differ and no operator says so")


def _inputs_kept(record: TaskRecord, _: Target) -> Verdict:
    return Verdict(not record.facts["behaviour"]["changes_inputs"], detail="forward changes its inputs")


def _finite(record: TaskRecord, _: Target) -> Verdict:
    return Verdict(record.facts["behaviour"]["finite"], detail="an output is not finite")


def _not_constant(record: TaskRecord, _: Target) -> Verdict:
    spread = record.facts["behaviour"]["spread"]
    return Verdict(spread >= MIN_SPREAD, spread, f"an output's spread is {spread:.2g} of its size")


def _inputs_matter(record: TaskRecord, _: Target) -> Verdict:
    effects = record.facts["sensitivity"]["inputs"]
    least = min(effects.values(), default=float("inf"))
    weak = [f"input {name} ({value:.2g})" for name, value in effects.items() if value < INPUT_EFFECT]
    return Verdict(not weak, least if effects else None, f"hardly matter: {', '.join(weak)}" if weak else "")


def _state_matters(record: TaskRecord, _: Target) -> Verdict:
    """Every parameter acts; those that algebra makes dead are listed, and exempt."""
    effects = record.facts["sensitivity"]["state"]
    executed = _graph(record)["calls"]
    weak: list[str] = []
    exempt: list[str] = []
    for name, value in effects.items():
        if value >= STATE_EFFECT:
            continue
        rule = dead_rule(name, executed) if value <= NO_STATE_EFFECT else ""
        (exempt if rule else weak).append(f"{name}: {rule}" if rule else f"{name} ({value:.2g})")
    detail = f"hardly matter: {', '.join(weak)}" if weak else f"exempt: {'; '.join(exempt)}" if exempt else ""
    return Verdict(not weak, min(effects.values(), default=None), detail)


def _no_idle_op(record: TaskRecord, _: Target) -> Verdict:
    facts = record.facts["mutants"]
    survivors = facts["survivors"]
    return Verdict(not survivors, facts["least_margin"], f"cannot be told: {'; '.join(survivors[:3])}")


def _admitted(fact: str) -> Callable[[TaskRecord, Target], Verdict]:
    """No trivial answer passes under any protocol; other weights under the judge's alone.

    Constructors that fill weights with ones give the same weights for every seed: the public protocols never
    move them, this judge's verification does.
    """

    def check(record: TaskRecord, _: Target) -> Verdict:
        facts = record.facts[fact]
        if facts["reason"]:
            return Verdict(False, detail=facts["reason"])
        passing = [
            f"{answer} ({rules})"
            for rules, found in facts["passing"].items()
            for answer in found
            if answer != "other_weights" or rules == "judge"
        ]
        margins = [margin for margin in facts["margins"].values() if margin is not None]
        return Verdict(not passing, min(margins, default=None), f"pass: {', '.join(passing)}")

    return check


# -- the device ---------------------------------------------------------------------------------


def _in_window(record: TaskRecord, target: Target) -> Verdict:
    median = record.facts["eager"]["median_us"]
    low, high = target.window_us
    return Verdict(low <= median <= high, median, f"eager takes {median / 1e3:.3g} ms")


def _in_memory(record: TaskRecord, target: Target) -> Verdict:
    peak = record.facts["eager"]["peak_bytes"]
    if peak is None:
        return _fits(record, target)
    return Verdict(peak <= target.max_bytes, peak, f"{peak / 2**30:.2f} GiB at once")


def _compiles(record: TaskRecord, _: Target) -> Verdict:
    facts = record.facts["compiled"]
    return Verdict(facts["agrees"], detail=facts["why"])


PREDICATES: tuple[Predicate, ...] = (
    Predicate("parses", Cost.STATIC, "", "-", "a task defines Model, get_inputs, get_init_inputs", _parses),
    Predicate(
        "self-contained", Cost.STATIC, "", "torch and standard library", "it runs anywhere", _self_contained
    ),
    Predicate(
        "few-ops", Cost.STATIC, "", "1 to 5 of torch, 20 else", "the paper composes at most 5", _few_ops
    ),
    Predicate("runs-abstract", Cost.ABSTRACT, "abstract", "-", "shapes agree", lambda *_: Verdict(True)),
    Predicate("memory", Cost.ABSTRACT, "abstract", "target's limit", "it fits before it is run", _fits),
    Predicate(
        "ops-execute",
        Cost.ABSTRACT,
        "traced",
        "every declared op",
        "a tenth of the public set declares what it never runs",
        _ops_execute,
    ),
    Predicate(
        "reads-inputs", Cost.ABSTRACT, "traced", "every input", "an input nobody reads is noise", _reads_all
    ),
    Predicate("not-random", Cost.SMALL, "behaviour", "1e-5", "a random task cannot be verified", _not_random),
    Predicate("one-mode", Cost.SMALL, "behaviour", "1e-4 or stated", "harnesses use either", _mode_as_stated),
    Predicate(
        "inputs-kept", Cost.SMALL, "behaviour", "bitwise", "inputs are used more than once", _inputs_kept
    ),
    Predicate("finite", Cost.SMALL, "behaviour", "every element", "NaN equals anything", _finite),
    Predicate(
        "not-constant", Cost.SMALL, "behaviour", f"{MIN_SPREAD:g}", "a constant is no work", _not_constant
    ),
    Predicate(
        "inputs-matter", Cost.SMALL, "sensitivity", f"{INPUT_EFFECT:g} x 1e-2", "work unseen", _inputs_matter
    ),
    Predicate(
        "state-matters",
        Cost.SMALL,
        "sensitivity",
        f"{STATE_EFFECT:g} or dead by rule",
        "a parameter without effect is a trap, or a mistake",
        _state_matters,
    ),
    Predicate("no-idle-op", Cost.SMALL, "mutants", "1 x 1e-2", "an op left out unseen is no op", _no_idle_op),
    Predicate(
        "admission-small",
        Cost.SMALL,
        "admission_small",
        "no trivial answer",
        "zeros, a mean, a stale output must fail",
        _admitted("admission_small"),
    ),
    Predicate("time-window", Cost.DEVICE, "eager", "1 to 100 ms", "the paper's window", _in_window),
    Predicate("peak-memory", Cost.DEVICE, "eager", "target's limit", "other tasks run beside it", _in_memory),
    Predicate(
        "admission",
        Cost.DEVICE,
        "admission",
        "no trivial answer",
        "at the shipped sizes, where averages hide more",
        _admitted("admission"),
    ),
    Predicate("compiles", Cost.DEVICE, "compiled", "judge's budget", "the baseline of the reward", _compiles),
)
"""All filters, in the order they are asked."""
