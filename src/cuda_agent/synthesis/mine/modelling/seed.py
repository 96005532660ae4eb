"""A seed from a class of transformers: specialised, tried, generalised, and run again as a seed."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.compose.abstract import seed_class
from cuda_agent.synthesis.families import Family, family_of
from cuda_agent.synthesis.mine.modelling.configuration import configurations
from cuda_agent.synthesis.mine.modelling.copies import fingerprint
from cuda_agent.synthesis.mine.modelling.drafts import Number
from cuda_agent.synthesis.mine.modelling.fit import Fit, fitted, moved, size_rules
from cuda_agent.synthesis.mine.modelling.graphs import graph_of
from cuda_agent.synthesis.mine.modelling.specialise import specialised
from cuda_agent.synthesis.mine.modelling.text import Written, written
from cuda_agent.synthesis.mine.modelling.walk import Unfit, located, package, version
from cuda_agent.synthesis.mine.parameters import Kind, Parameter
from cuda_agent.synthesis.mine.running import seed_runs, shapes_follow
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.traits import Idle, measured, refuse_idle
from cuda_agent.synthesis.mine.trial import Trial
from cuda_agent.synthesis.seed import Origin, Seed
from cuda_agent.synthesis.seed_rules import Form, InputRule, OptionRule

LICENCE = "Apache-2.0"
_UNFILLED = re.compile(r"torch\.(empty|empty_like|Tensor|FloatTensor)\(")
_RANDOM = re.compile(r"torch\.(rand|randn|randint|normal|bernoulli|multinomial|randperm)\w*\(")
_RATE = re.compile(r"eps|epsilon")
_seen: dict[str, str] = {}


def transformers_seed(id_: str) -> Seed:
    """The seed of one class.

    Args:
        id_: of :func:`cuda_agent.synthesis.mine.modelling.walk.class_ids`.

    Raises:
        Idle: it is none; one line says why. A copy of a class that this process has tried is none either.
    """
    text = trimmed(id_)
    mark = fingerprint(text.source)
    if _seen.setdefault(mark, id_) != id_:
        raise Idle(f"a copy of {_seen[mark]}")
    if _UNFILLED.search(text.source):
        raise Idle("reads memory that nothing fills")
    try:
        fit = moved(fitted(text))
    except SyntaxError as error:
        raise Idle(f"cannot be written: {error.msg}") from None
    seed = _seed(id_, fit)
    mark = graph_of(seed)
    if _seen.setdefault(mark, id_) != id_:
        raise Idle(f"computes what {_seen[mark]} computes")
    return _with_halves(seed)


def trimmed(id_: str) -> Written:
    """A class as self-contained source, numbers of its configuration as arguments.

    Raises:
        Idle: it cannot be; one line says why.
    """
    file, node = located(id_)
    reason = "no configuration fits it"
    for config in configurations(file, node):
        try:
            return written(specialised(file, node, config))
        except Unfit as unfit:
            reason = str(unfit)
        except RecursionError:
            reason = "its parts contain each other"
    raise Idle(reason)


def _seed(id_: str, fit: Fit) -> Seed:
    name = fit.written.class_name
    rules = size_rules(fit)
    sized = {rule.name for rule in rules}
    path = located(id_)[0].path.relative_to(package().parent)
    seed = Seed(
        id=id_,
        op=name,
        origin=Origin.TRANSFORMERS,
        kind=_kind(name, fit.written.source),
        class_name=name,
        source=fit.written.source,
        sizes=rules,
        options=_options(fit, [n for n in fit.numbers if n not in sized]),
        inputs=tuple(
            InputRule(n, draft.law, (given.type_name,), high=draft.high)
            for n, draft, given in zip(fit.written.inputs, fit.drafts, fit.givens(fit.sizes), strict=True)
        ),
        forms=(Form(tuple(draft.shape for draft in fit.drafts)),),
        version=f"transformers {version()}",
        licence=LICENCE,
        derived_from=f"{path.as_posix()}, class {name}",
    )
    if not seed_runs(seed):
        raise Idle("it does not run as a seed")
    return _measured(seed, fit)


def _measured(seed: Seed, fit: Fit) -> Seed:
    inputs = tuple(Parameter(n, Kind.TENSOR) for n in fit.written.inputs)
    subject = Subject(seed.op, seed_class(seed), True, tensors=inputs)
    trial = Trial(fit.numbers, fit.givens(fit.sizes))
    ran = refuse_idle(subject, trial)
    fake = shapes_follow(seed)
    traits = measured(subject, trial, ran, fake=fake)
    if traits.by_mode:
        raise Idle("differs in train and eval mode")
    if fake and not _stays_on_device(seed):
        raise Idle("makes tensors on the CPU while it runs")
    return replace(seed, traits=traits)


def _stays_on_device(seed: Seed) -> bool:
    """Whether everything in forward is made where the inputs are: a second device tells."""
    setting = seed.base()
    try:
        with FakeTensorMode(), torch.no_grad():
            with torch.device("meta"):
                made: Any = seed_class(seed)(**seed.arguments(setting)).eval()
                given = [
                    torch.zeros(shape or (), dtype=getattr(torch, rule.dtypes[0]))
                    for shape, rule in zip(seed.shapes(setting), seed.inputs, strict=True)
                ]
            places = {out.device.type for out in leaves(made(*given))}
    except Exception:  # noqa: BLE001  whatever it raises, the devices do not agree
        return False
    loose = any(isinstance(v, torch.Tensor) for m in made.modules() for v in vars(m).values())
    return places == {"meta"} and not loose


def _options(fit: Fit, names: Sequence[str]) -> tuple[OptionRule, ...]:
    """Numbers that are no sizes: choices that run, with those of the options before them too."""
    found: list[OptionRule] = []
    defaulted = _defaulted(fit.written)
    for name in names:
        value = fit.numbers[name]
        choices = dict.fromkeys([value, *(v for v in _near(name, value) if _fits(fit, name, v, found))])
        default = fit.written.numbers.get(name) if name in defaulted else None
        found.append(OptionRule(name, tuple(choices)[:3], default, required=name not in defaulted))
    return tuple(found)


def _fits(fit: Fit, name: str, value: Number, before: Sequence[OptionRule]) -> bool:
    """Whether a choice runs at the base, at other sizes, and with every choice of earlier options."""
    others = [{}, {n: fit.sizes[n] + step for n, step in fit.steps.items()}]
    others += [{rule.name: choice} for rule in before for choice in rule.choices[1:]]
    return all(fit.holds({name: value} | other) for other in others)


def _near(name: str, value: Number) -> list[Number]:
    if isinstance(value, float):
        return [1e-5, 1e-6] if _RATE.search(name) and value < 1e-3 else [float(f"{value / 2:.3g}")]
    if re.search(r"heads?$|experts?$", name):
        return [value * 2, value * 4, value // 2]
    if re.search(r"kernel", name):
        return [value + 2, value - 2] if value > 2 else []
    return []


def _defaulted(text: Written) -> set[str]:
    """Parameters that the class gives a default."""
    tree = ast.parse(text.source)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == text.class_name:
            init = next(
                (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None
            )
            if init is not None:
                num = len(init.args.args) - len(init.args.defaults)
                return {a.arg for a in init.args.args[num:]}
    return set()


def _kind(name: str, source: str) -> str:
    """The family that the name says; else what the source is made of."""
    family = family_of(name)
    if family is not Family.ELEMENTWISE:
        return str(family)
    if "softmax" in source and "matmul" in source:
        return str(Family.ATTENTION)
    parts = (("Conv", Family.CONVOLUTION), ("Embedding", Family.EMBEDDING), ("Linear", Family.MATMUL))
    return str(next((found for text, found in parts if f"nn.{text}" in source), family))


def _with_halves(seed: Seed) -> Seed:
    """The half-precision types that every floating input may have too."""
    floating = [rule for rule in seed.inputs if rule.dtypes[0] == "float32"]
    ran = tuple(name for name in ("float16", "bfloat16") if floating and seed_runs(seed, dtype=name))
    rules = [replace(r, dtypes=(*r.dtypes, *ran)) if r in floating else r for r in seed.inputs]
    return replace(seed, inputs=tuple(rules))
