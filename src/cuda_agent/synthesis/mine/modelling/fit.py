"""The first way of using a class that runs, and which of its sizes may move."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.compose.abstract import run_source
from cuda_agent.synthesis.dims import evaluated, names_in
from cuda_agent.synthesis.mine.modelling.drafts import (
    FREE,
    HEAD_DIM,
    POSITIONS,
    SIZED,
    Draft,
    Number,
    input_drafts,
    number_drafts,
)
from cuda_agent.synthesis.mine.modelling.text import Written
from cuda_agent.synthesis.mine.search import Clock
from cuda_agent.synthesis.mine.traits import Idle
from cuda_agent.synthesis.mine.trial import Given, check, equal
from cuda_agent.synthesis.seed_rules import SizeRule

SECONDS = 25.0
_COMBINATIONS = 240
_STEPS = (1, 2, 4, 8, 16, 32, 3, 5, 64)
_MAX_ELEMENTS = 1 << 24
_SMALL = 16
_MOST_HEAD_DIM = 128
LONG = 2048
"""Length that tables of positions are made for."""


@dataclass
class Fit:
    """A way to use a class that runs.

    Attributes:
        written: the class; its source may be rewritten where two of its numbers have to be one.
        numbers: arguments of the constructor.
        free: sizes of inputs alone.
        drafts: inputs.
        steps: sizes that may move, with what they move by.
        most: of sizes that have a bound.
    """

    written: Written
    numbers: dict[str, Number]
    free: dict[str, int]
    drafts: tuple[Draft, ...]
    steps: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(SECONDS))

    @property
    def sizes(self) -> dict[str, int]:
        """All whole numbers by name."""
        return {n: v for n, v in (self.free | self.numbers).items() if isinstance(v, int)}

    def givens(self, sizes: Mapping[str, int]) -> tuple[Given, ...]:
        """The inputs at some sizes."""
        return tuple(
            Given(
                tuple(evaluated(dim, sizes) for dim in draft.shape),
                draft.law,
                high=evaluated(draft.high, sizes) if draft.high else 2,
            )
            for draft in self.drafts
        )

    def holds(self, changes: Mapping[str, Number]) -> bool:
        """Whether it runs with other numbers or sizes."""
        if self.clock.is_over:
            raise Idle("it takes too long to try")
        numbers = self.numbers | {n: v for n, v in changes.items() if n in self.numbers}
        sizes = self.sizes | {n: v for n, v in changes.items() if isinstance(v, int)}
        try:
            ran(class_of(self.written), numbers, self.givens(sizes))
        except Exception:  # noqa: BLE001  it may refuse sizes in any way
            return False
        return True

    def used(self) -> set[str]:
        """Sizes that inputs depend on."""
        texts = [dim for draft in self.drafts for dim in draft.shape]
        texts += [draft.high for draft in self.drafts if draft.high]
        return {name for text in texts for name in names_in(text)}


def class_of(written: Written) -> Callable[..., Any]:
    """The class, made from its source."""
    made: Callable[..., Any] = run_source(written.source, f"seed {written.class_name}")[written.class_name]
    return made


def ran(cls: Callable[..., Any], numbers: Mapping[str, Number], givens: Sequence[Given]) -> list[Tensor]:
    """What a class gives; weights and inputs follow from a fixed seed.

    Raises:
        Exception: whatever it raises.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        made = cls(**numbers).eval()
        torch.manual_seed(1)
        return _outputs(made, [g.draw() for g in givens])


def _outputs(made: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    given = made(*inputs)
    if not isinstance(given, Tensor | tuple | list):
        raise TypeError("no tensor")
    found = list(leaves(given))
    check(found)
    return found


def fitted(written: Written) -> Fit:
    """Search for a way that runs.

    Raises:
        Idle: none was found, or one was and it is no work; one line says why.
    """
    cls = class_of(written)
    clock = Clock(SECONDS)
    reason = "nothing that was tried runs"
    for numbers in number_drafts(written.numbers):
        try:
            made = _built(cls, numbers)
        except Exception as error:  # noqa: BLE001  a constructor may refuse in any way
            reason = f"its constructor refuses: {' '.join(str(error).split())[:80]}"
            continue
        for drafts in input_drafts(written.inputs, numbers, written.source, limit=_COMBINATIONS):
            if clock.is_over:
                raise Idle("no way to call it was found in time")
            fit = Fit(written, dict(numbers), dict(FREE), drafts)
            if _runs(made, fit):
                fit.free = {n: v for n, v in FREE.items() if n in fit.used()}
                _refuse_deaf(made, fit)
                return fit
        reason = "nothing that was tried runs"
    raise Idle(reason)


def _built(cls: Callable[..., Any], numbers: Mapping[str, Number]) -> Any:
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(**numbers).parameters())
    if size > _MAX_ELEMENTS:
        raise ValueError("it is too large")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return cls(**numbers).eval()


def _runs(made: Any, fit: Fit) -> bool:
    clashes = fit.used() & FREE.keys() & fit.numbers.keys()
    if clashes or not fit.drafts:
        return False
    try:
        with torch.no_grad():
            _outputs(made, [g.draw() for g in fit.givens(fit.free | fit.sizes)])
    except Exception:  # noqa: BLE001  it may refuse inputs in any way
        return False
    return True


def _refuse_deaf(made: Any, fit: Fit) -> None:
    """Every input must change what comes out, and every output must be changed by one."""
    with torch.no_grad():
        torch.manual_seed(1)
        givens = fit.givens(fit.sizes)
        inputs = [g.draw() for g in givens]
        before = _outputs(made, [x.clone() for x in inputs])
        unmoved = set(range(len(before)))
        for index, given in enumerate(givens):
            moved = [given.draw() if i == index else x.clone() for i, x in enumerate(inputs)]
            try:
                after = _outputs(made, moved)
            except Exception:  # noqa: BLE001  shapes of the output may depend on values
                continue
            if equal(before, after):
                raise Idle(f"its output does not depend on {fit.written.inputs[index]}")
            unmoved = {i for i in unmoved if i < len(after) and equal([before[i]], [after[i]])}
        if unmoved:
            raise Idle("an output of it does not depend on its inputs")


# -- sizes --------------------------------------------------------------------------------------


def moved(fit: Fit) -> Fit:
    """The fit with its movable sizes found; numbers that have to be equal become one.

    Raises:
        Idle: no size of an input can move.
    """
    for name in [*fit.numbers, *fit.free]:
        if name not in fit.sizes or not _is_size(fit, name):
            continue
        fit.steps.update(_step(fit, [name]))
        if name in fit.numbers and name not in fit.steps:
            fit = _tied(fit, name)
    for name in [n for n in fit.free if n not in fit.steps]:
        fit.drafts = tuple(_fixed(draft, name, fit.free[name]) for draft in fit.drafts)
    fit.free = {n: v for n, v in fit.free.items() if n in fit.steps}
    fit = _together(fit)
    _give_room(fit)
    if not fit.steps.keys() & fit.used():
        raise Idle("its sizes cannot be moved")
    return fit


def _is_size(fit: Fit, name: str) -> bool:
    """Whether a whole number is worth moving: inputs depend on it, or it is large."""
    size = fit.sizes[name]
    return name in fit.free or size > _SMALL or (size > 1 and bool(SIZED.search(name)))


def _step(fit: Fit, names: Sequence[str]) -> dict[str, int]:
    """The least step at which sizes run once and twice above their base; empty where none is."""
    base = fit.sizes[names[0]]
    for step in _STEPS:
        if base % step:
            continue
        if all(fit.holds(dict.fromkeys(names, base + step * k)) for k in (1, 2, 5)):
            return {names[0]: step}
    return {}


def _tied(fit: Fit, name: str) -> Fit:
    """A number that moves only with another of its value is replaced by it."""
    others = [
        n for n, v in fit.numbers.items() if n != name and v == fit.numbers[name] and n in fit.written.numbers
    ]
    for other in others:
        if found := _step(fit, [other, name]):
            merged = replace_number(fit, name, other)
            merged.steps.update(found)
            return merged
    return fit


def replace_number(fit: Fit, name: str, other: str) -> Fit:
    """The fit with one argument of the constructor given up for another."""
    tree = ast.parse(fit.written.source)
    top = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == fit.written.class_name)
    init = next(n for n in top.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    arguments = init.args
    index = next(i for i, a in enumerate(arguments.args) if a.arg == name)
    first_default = len(arguments.args) - len(arguments.defaults)
    if index >= first_default:
        del arguments.defaults[index - first_default]
    del arguments.args[index]
    for node in ast.walk(init):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = other
    head = fit.written.source.partition("\n\n\n")[0]
    parts = [ast.unparse(n) for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    numbers = {n: v for n, v in fit.written.numbers.items() if n != name}
    source = "\n\n\n".join([head, *parts]) + "\n"
    drafts = tuple(_renamed(draft, name, other) for draft in fit.drafts)
    return Fit(
        replace(fit.written, source=source, numbers=numbers),
        {n: v for n, v in fit.numbers.items() if n != name},
        fit.free,
        drafts,
        {n: v for n, v in fit.steps.items() if n != name},
        fit.most,
        fit.clock,
    )


def _renamed(draft: Draft, name: str, text: str) -> Draft:
    def put(expression: str) -> str:
        return re.sub(rf"\b{name}\b", text, expression)

    return replace(draft, shape=tuple(put(dim) for dim in draft.shape), high=put(draft.high))


def _fixed(draft: Draft, name: str, value: int) -> Draft:
    return _renamed(draft, name, str(value))


def _together(fit: Fit) -> Fit:
    """What moves alone must move with all the others; numbers that do not are left where they are."""
    while not _all_move(fit):
        numbers = [n for n in fit.steps if n in fit.numbers]
        if not numbers:
            raise Idle("its sizes do not move together")
        coarser = next((n for n in numbers if fit.steps[n] < 8 and fit.numbers[n] % 16 == 0), None)
        if coarser is not None:
            fit.steps[coarser] = 16
        else:
            del fit.steps[next((n for n in numbers if n not in fit.used()), numbers[-1])]
    return fit


def _give_room(fit: Fit) -> None:
    """A table of positions bounds the length: it gets a fixed, long one."""
    lengths = [n for n in ("length", "other_length") if n in fit.steps]
    for name in [n for n in fit.steps if n in fit.numbers and POSITIONS.search(n)]:
        bounded = [n for n in lengths if not fit.holds({n: fit.sizes[name] + 24 * fit.steps[n]})]
        if bounded and fit.holds({name: LONG} | {n: LONG // 2 for n in bounded}):
            fit.numbers[name] = LONG
            del fit.steps[name]
            fit.most |= dict.fromkeys(bounded, LONG)


def _all_move(fit: Fit) -> bool:
    factors = ((1, 1, 1), (3, 1, 2), (2, 5, 1))
    return all(
        fit.holds({n: fit.sizes[n] + s * row[i % 3] for i, (n, s) in enumerate(fit.steps.items())})
        for row in factors
    )


def size_rules(fit: Fit) -> tuple[SizeRule, ...]:
    """The sizes as rules: arguments first; those that inputs depend on and that cannot move stay fixed."""
    rules = []
    used = fit.used()
    for name, value in {**fit.numbers, **fit.free}.items():
        if not isinstance(value, int):
            continue
        step = fit.steps.get(name)
        argument = name in fit.numbers
        if step is None:
            if name in used:
                rules.append(SizeRule(name, value, value, 1, value, argument=argument))
            continue
        rules.append(_moving(fit, name, step))
    return tuple(rules)


def _moving(fit: Fit, name: str, step: int) -> SizeRule:
    argument = name in fit.numbers
    base = fit.sizes[name]
    if argument and HEAD_DIM.search(name) and base % _SMALL == 0 and base <= _MOST_HEAD_DIM:
        return SizeRule(name, base, base, max(step, _SMALL), _MOST_HEAD_DIM, argument=True)
    return SizeRule(name, base, _least(fit, name, step), step, fit.most.get(name), argument=argument)


def _least(fit: Fit, name: str, step: int) -> int:
    base = fit.sizes[name]
    tries = dict.fromkeys([step, 2 * step, 4 * step, base // 4, base // 2])
    fine = [v for v in tries if 0 < v < base and v % step == 0]
    return next((v for v in sorted(fine) if fit.holds({name: v}) and fit.holds({name: v + step})), base)
