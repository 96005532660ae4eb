"""Mutants of a task: one call dropped, or two neighbours swapped; each must give another output.

A call that can be left out unseen is no part of the task (a ReLU after a sigmoid, a clamp that never acts);
two calls whose order does not matter make the task's declared sequence a fiction, unless an identity says so.

Works on calls of the public interface while the module runs, so on any source: nothing is rewritten.

Does not cover: more than one change at once; calls inside of PyTorch's own composites (they are one call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.judge.trivial import unit_error
from cuda_agent.synthesis.filters.commute import NO_EFFECT, rule_for
from cuda_agent.synthesis.filters.tracing import function_name
from cuda_agent.synthesis.words import key_of

TOLERANCE = 1e-2
"""atol = rtol that a mutant must exceed (the loosest protocol a result is reported under)."""
MAX_CALLS = 64
"""Calls looked at in one task."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        what: in words (``drop torch.relu``).
        margin: error over tolerance on the draws tried; ``None`` where it does not run or has another form.
        rule: why it may stay unseen; empty otherwise.
    """

    what: str
    margin: float | None
    rule: str = ""

    @property
    def survives(self) -> bool:
        """It cannot be told from the original, and no rule says why."""
        return self.margin is not None and self.margin <= 1 and not self.rule


@dataclass(frozen=True)
class _Call:
    name: str
    func: Any
    args: Any
    kwargs: Mapping[str, Any]
    given: Any


def mutants(model: Any, draws: Sequence[Sequence[Any]]) -> Iterator[Mutant]:
    """Try all mutants of a module on small inputs.

    Args:
        model: in eval mode.
        draws: inputs; left unchanged unless the module changes its own.
    """
    base = [_outputs(model, inputs) for inputs in draws]
    calls = _recorded(model, draws[0])
    for index, call in enumerate(calls[:MAX_CALLS]):
        if key_of(call.name) in NO_EFFECT or not isinstance(call.given, Tensor):
            continue
        for number, kept in enumerate(_alternatives(call)):
            margin = _margin(model, draws, base, {index: _passing(number)})
            what = f"drop {call.name}" + (f" (keep argument {kept})" if number else "")
            yield Mutant(what, margin, _GUARD if _is_guard(call) else "")
        if (after := _sole_reader(calls, index)) is not None:
            yield _swapped(model, draws, base, (index, after), calls)


def _swapped(
    model: Any,
    draws: Sequence[Sequence[Any]],
    base: Sequence[list[Tensor]],
    places: tuple[int, int],
    calls: Sequence[_Call],
) -> Mutant:
    first, second = (calls[place] for place in places)
    if key_of(second.name) in NO_EFFECT:
        return Mutant(f"swap {first.name}, {second.name}", None)
    changes = {places[0]: _reversed(first, second), places[1]: _passing_on(first.given, second)}
    margin = _margin(model, draws[:1], base[:1], changes)
    rule = rule_for(first.name, second.name)
    if _is_guard(first) or _is_guard(second):
        rule = _GUARD
    return Mutant(f"swap {first.name}, {second.name}", margin, rule)


# -- running with changes ---------------------------------------------------------------------

_Change = Callable[[Any, Any, Mapping[str, Any]], Any]


class _Player(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Counts calls; some are answered by a change, all may be recorded."""

    def __init__(self, changes: Mapping[int, _Change], record: list[_Call] | None = None) -> None:
        super().__init__()
        self._changes = changes
        self._record = record
        self._next = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name.endswith("__get__"):
            return func(*args, **kwargs)
        index, self._next = self._next, self._next + 1
        change = self._changes.get(index)
        given = func(*args, **kwargs) if change is None else change(func, args, kwargs)
        if self._record is not None:
            self._record.append(_Call(name, func, args, kwargs, given))
        return given


def _outputs(model: Any, inputs: Sequence[Any]) -> list[Tensor]:
    return [leaf.clone() for leaf in leaves(model(*_copied(inputs)))]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return value


def _recorded(model: Any, inputs: Sequence[Any]) -> list[_Call]:
    calls: list[_Call] = []
    copies = _copied(inputs)
    with _Player({}, calls):
        model(*copies)
    return calls


def _margin(
    model: Any, draws: Sequence[Sequence[Any]], base: Sequence[list[Tensor]], changes: Mapping[int, _Change]
) -> float | None:
    """Largest error over tolerance; ``None`` where the mutant does not run or has another form."""
    worst = 0.0
    for inputs, expected in zip(draws, base, strict=True):
        copies = _copied(inputs)
        try:
            with _Player(changes):
                actual = list(leaves(model(*copies)))
        except Exception:  # noqa: BLE001  a mutant may fail in any way; that tells it apart
            return None
        if [(a.shape, a.dtype) for a in actual] != [(e.shape, e.dtype) for e in expected]:
            return None
        worst = max([worst, *(unit_error(a, e) / TOLERANCE for a, e in zip(actual, expected, strict=True))])
        if worst > 1:
            break
    return worst


# -- changes ----------------------------------------------------------------------------------


def _arguments(args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for leaf in leaves([list(args), dict(kwargs)])]


def _alternatives(call: _Call) -> list[int]:
    """Arguments that could stand for the call's result, by position among its tensors."""
    form = (call.given.shape, call.given.dtype)
    return [i for i, t in enumerate(_arguments(call.args, call.kwargs)) if (t.shape, t.dtype) == form]


def _passing(number: int) -> _Change:
    """Give back the ``number``-th argument of the result's form."""

    def change(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        given = func(*args, **kwargs)
        fitting = [t for t in _arguments(args, kwargs) if (t.shape, t.dtype) == (given.shape, given.dtype)]
        return fitting[number]

    return change


_GUARD = "a small constant that guards a root or a quotient"
_GUARD_UP_TO = 1e-3


def _is_guard(call: _Call) -> bool:
    """``x + eps``, ``x.clamp(min=eps)``: there for inputs that are not drawn."""
    if key_of(call.name) not in ("add", "radd", "clamp", "clampmin", "maximum"):
        return False
    numbers = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, int | float)]
    return len(numbers) == 1 and 0 < numbers[0] <= _GUARD_UP_TO


def _sole_reader(calls: Sequence[_Call], index: int) -> int | None:
    """The call that alone reads what call ``index`` gave; ``None`` when another does too, or none."""
    given = calls[index].given
    readers = [
        later
        for later in range(index + 1, len(calls))
        for tensor in _arguments(calls[later].args, calls[later].kwargs)
        if tensor is given
    ]
    return readers[0] if len(readers) == 1 else None


def _reversed(first: _Call, second: _Call) -> _Change:
    """The second call's function on the first one's argument, then the first one's on that."""

    def change(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        [source, *_] = _arguments(args, kwargs)
        early = second.func(
            *_put(second.args, first.given, source), **_put(second.kwargs, first.given, source)
        )
        if not isinstance(early, Tensor):
            raise TypeError("no tensor to go on with")
        return func(*_put(args, source, early), **_put(kwargs, source, early))

    return change


def _passing_on(given: Tensor, second: _Call) -> _Change:
    """Give back what stands where the first call's result stood."""
    position = [t is given for t in _arguments(second.args, second.kwargs)].index(True)

    def change(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        del func
        return _arguments(args, kwargs)[position]

    return change


def _put(value: Any, old: Tensor, new: Tensor) -> Any:
    """``value`` with one tensor replaced."""
    if value is old:
        return new
    if isinstance(value, list | tuple):
        return type(value)(_put(item, old, new) for item in value)
    if isinstance(value, Mapping):
        return {key: _put(item, old, new) for key, item in value.items()}
    return value


def run_mutants(model: Any, moved: Any, draws: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """All mutants as facts: how many were tried, which survive, which a rule exempts, the least margin.

    Args:
        model: in eval mode.
        moved: a copy whose parameters and buffers were moved away from their defaults, as the judge's
            verification does (a batch norm fresh from its constructor does nothing in eval mode); what
            survives on the model is tried there.
        draws: inputs.
    """
    with torch.no_grad():
        found = list(mutants(model, draws))
        if any(mutant.survives for mutant in found):
            again = {mutant.what: mutant for mutant in mutants(moved, draws)}
            found = [again.get(m.what, m) if m.survives else m for m in found]
    told = [m.margin for m in found if m.margin is not None and m.margin > 1]
    return {
        "tried": len(found),
        "survivors": [m.what for m in found if m.survives],
        "exempt": [f"{m.what}: {m.rule}" for m in found if m.rule and m.margin is not None and m.margin <= 1],
        "least_margin": min(told, default=None) if min(told, default=0.0) < 1e30 else None,
    }
