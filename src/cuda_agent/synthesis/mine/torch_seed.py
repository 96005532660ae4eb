"""A seed from an operator of PyTorch: tried, generalised, and run again through the seed itself."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import torch

from cuda_agent.synthesis.families import family_of
from cuda_agent.synthesis.mine.bounds import high_of
from cuda_agent.synthesis.mine.forms import merged
from cuda_agent.synthesis.mine.naming import named
from cuda_agent.synthesis.mine.parameters import Parameter
from cuda_agent.synthesis.mine.proposals import is_axis, is_size, values
from cuda_agent.synthesis.mine.running import seed_runs, shapes_follow
from cuda_agent.synthesis.mine.search import Clock, first_trials
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.ties import Tie, ties
from cuda_agent.synthesis.mine.traits import Idle, measured, refuse_idle
from cuda_agent.synthesis.mine.trial import Ran, Trial, equal, run
from cuda_agent.synthesis.seed import Origin, Seed
from cuda_agent.synthesis.seed_rules import Form, InputRule, OptionRule, Shape, SizeRule, Spelling, Value

SECONDS_EACH = 20.0
_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_MAX_CHOICES = 4


def torch_seed(id_: str, subject: Subject) -> Seed:
    """The seed of one operator.

    Args:
        id_: full dotted name.
        subject: of the operator.

    Raises:
        Idle: it is none; one line says why.
    """
    if any(p.starred for p in subject.order):
        raise Idle("takes any number of tensors")
    found = first_trials(subject, Clock(SECONDS_EACH))
    if not found:
        raise Idle("nothing that was tried runs")
    seeds = [seed for trial in found if (seed := _one(id_, subject, trial)) is not None]
    if not seeds:
        raise Idle("its sizes cannot be moved, or it does not run as a class of its own")
    return _with_halves(merged(seeds))


def _with_halves(seed: Seed) -> Seed:
    """The half-precision types that every floating input of a seed may have too."""
    floating = [rule for rule in seed.inputs if rule.dtypes[0] == "float32"]
    ran = tuple(name for name in ("float16", "bfloat16") if floating and seed_runs(seed, dtype=name))
    rules = [replace(r, dtypes=(*r.dtypes, *ran)) if r in floating else r for r in seed.inputs]
    return replace(seed, inputs=tuple(rules))


def _one(id_: str, subject: Subject, trial: Trial) -> Seed | None:
    """A seed of one form; ``None`` where it does not run through its own class."""
    ran = refuse_idle(subject, trial)
    arguments = [p.name for p in subject.hyper if is_size(p)]
    groups = ties(subject, trial, arguments)
    if not any(kind == "input" for group in groups for kind, _, _ in group.slots):
        return None
    names = named(subject, trial, groups)
    used = [i for i, given in enumerate(trial.givens) if given is not None]
    highs = [high_of(subject, trial, i, groups, names) for i in used]
    names, highs = _classes_named(subject, used, names, highs)
    shapes = _shapes(trial, groups, names)
    sized = {group.argument for group in groups if group.argument}
    inputs = [_input_rule(subject, trial, i, high) for i, high in zip(used, highs, strict=True)]
    # Bounds hold for the axis they were found on.
    bounded = any(not rule.high.isdecimal() for rule in inputs if rule.high)
    seed = Seed(
        id=id_,
        op=subject.target,
        origin=Origin.TORCH,
        kind=str(family_of(subject.target)),
        class_name=_class_name(subject.target),
        source="",
        sizes=tuple(
            SizeRule(n, g.base, g.least, g.multiple_of, argument=bool(g.argument))
            for n, g in zip(names, groups, strict=True)
        ),
        options=_options(subject, trial, sized, fixed_axis=bounded),
        inputs=tuple(inputs),
        forms=(Form(tuple(shapes[i] for i in used)),),
        spelling=_spelling(subject),
        version=f"torch {torch.__version__}",
        licence="BSD-3-Clause",
    )
    seed = replace(seed, source=_source(subject, seed))
    if not seed_runs(seed):
        return None
    return replace(seed, traits=measured(subject, trial, ran, fake=shapes_follow(seed)))


def _classes_named(
    subject: Subject, used: Sequence[int], names: list[str], highs: list[str]
) -> tuple[list[str], list[str]]:
    """The size that a target of classes stays below is their number, whatever axis it is."""
    bound = next((h for i, h in zip(used, highs, strict=True) if subject.inputs[i].name == "target"), "")
    new = {bound: "num_classes"} if bound in names else {}
    return [new.get(name, name) for name in names], [new.get(high, high) for high in highs]


def _shapes(trial: Trial, groups: Sequence[Tie], names: Sequence[str]) -> dict[int, Shape]:
    by_slot = {slot: name for group, name in zip(groups, names, strict=True) for slot in group.slots}
    return {
        index: tuple(by_slot.get(("input", index, axis), str(size)) for axis, size in enumerate(given.shape))
        for index, given in enumerate(trial.givens)
        if given is not None
    }


def _options(subject: Subject, trial: Trial, sized: set[str], *, fixed_axis: bool) -> tuple[OptionRule, ...]:
    """Values that run, each with all else at its base, and that change what comes out."""
    found = []
    base = run(subject, trial)
    for parameter in subject.hyper:
        if parameter.name in sized:
            continue
        choices = [trial.options.get(parameter.name, parameter.default)]
        fixed = fixed_axis and is_axis(parameter)
        for value in () if fixed else values(parameter, subject.doc):
            fresh = len(choices) < _MAX_CHOICES and value not in choices
            if fresh and _acts(subject, trial, parameter, value, base):
                choices.append(value)
        if len(choices) > 1 or parameter.required or parameter.name in trial.options:
            found.append(OptionRule(parameter.name, tuple(choices), parameter.default, parameter.required))
    return tuple(found)


def _acts(subject: Subject, trial: Trial, parameter: Parameter, value: Value, base: Ran) -> bool:
    try:
        ran = refuse_idle(subject, trial.with_options({parameter.name: value}))
    except Exception:  # noqa: BLE001  an operator may refuse in any way
        return False
    return not equal(ran.outputs, base.outputs)


def _input_rule(subject: Subject, trial: Trial, index: int, high: str) -> InputRule:
    given = trial.givens[index]
    assert given is not None
    return InputRule(subject.inputs[index].name, given.law, (given.type_name,), high=high)


def _spelling(subject: Subject) -> Spelling:
    """Required arguments by position, an axis by its name."""
    order = subject.hyper if subject.is_module else subject.order
    positional = []
    for parameter in order:
        if parameter.keyword_only or not parameter.required or parameter.name in ("dim", "axis"):
            break
        positional.append(parameter.name)
    return Spelling(subject.target, subject.is_module, tuple(positional), subject.listed())


def _class_name(target: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[._]", target) if part)


def _source(subject: Subject, seed: Seed) -> str:
    names = [rule.name for rule in seed.sizes if rule.argument] + [rule.name for rule in seed.options]
    inputs = [rule.name for rule in seed.inputs]
    if subject.is_module:
        init = [f"self.op = {subject.target}({', '.join(f'{n}={n}' for n in names)})"]
        call = f"self.op({', '.join(inputs)})"
    else:
        init = [f"self.{name} = {name}" for name in names]
        call = seed.call(seed.base(), inputs, names={n: f"self.{n}" for n in names})
    body = "\n".join(["super().__init__()", *init])
    signature = ", ".join(["self", *names])
    return (
        f"{_HEAD}class {seed.class_name}(nn.Module):\n    def __init__({signature}):\n"
        f"{textwrap.indent(body, ' ' * 8)}\n\n"
        f"    def forward(self, {', '.join(inputs)}):\n        return {call}\n"
    )
