"""A plan as source: what a person who wanted this layer would write."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuda_agent.synthesis.compose.plan import Branch, Plan, Step, Tensor
from cuda_agent.synthesis.families import Family, family_of
from cuda_agent.synthesis.law import drawing
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import Setting
from cuda_agent.synthesis.words import key_of

_SKIPS = ("identity", "residual", "skip", "shortcut")
_ATTRIBUTES = {
    Family.CONVOLUTION: "conv",
    Family.NORM: "norm",
    Family.POOL: "pool",
    Family.ACTIVATION: "act",
    Family.EMBEDDING: "embedding",
    Family.ATTENTION: "attention",
    Family.RECURRENT: "rnn",
    Family.LOSS: "criterion",
    Family.SOFTMAX: "softmax",
    Family.RESAMPLE: "resample",
}
_JOINS = {
    Branch.ADD: "{x} + {y}",
    Branch.MUL: "{x} * {y}",
    Branch.SUB: "{x} - {y}",
    Branch.MAXIMUM: "torch.maximum({x}, {y})",
}
_TORCH, _NN, _F = "import torch", "import torch.nn as nn", "import torch.nn.functional as F"
_USUAL = (_TORCH, _NN, _F, "from torch import nn", "from torch.nn import functional as F")
_WIDTH = 96


@dataclass
class _Text:
    """The parts of a module as they are written."""

    imports: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    has_state: bool = False


def source_of(plan: Plan, values: Mapping[str, int], rng: random.Random) -> str:
    """The task's module.

    Args:
        plan: the task.
        values: of its size constants.
        rng: for choices of wording.
    """
    text = _Text()
    skips = _skip_names(plan, rng)
    variable = plan.inputs[0].name
    for index, step in enumerate(plan.steps):
        if index - 1 in skips:
            text.forward.append(f"{skips[index - 1]} = {variable}")
        call = _step_text(step, [variable, *_operands(step, skips)], plan, text)
        text.forward.append(_assigned(call, step.num_outputs, last=index == len(plan.steps) - 1))
        variable = "x"
    return _module(plan, values, text)


def _skip_names(plan: Plan, rng: random.Random) -> dict[int, str]:
    """Names for results that a later join reads, by index (-1: the first input)."""
    read = [other for step in plan.steps for other in step.others if isinstance(other, int)]
    names = rng.sample(_SKIPS, len(_SKIPS))
    return {index: names[number % len(names)] for number, index in enumerate(dict.fromkeys(read))}


def _operands(step: Step, skips: Mapping[int, str]) -> list[str]:
    return [
        skips[other] if isinstance(other, int) else other.name if other is not None else "None"
        for other in step.others
    ]


def _assigned(call: str, num_outputs: int, *, last: bool) -> str:
    if num_outputs == 1:
        return f"return {call}" if last else f"x = {call}"
    if num_outputs == 2 and not last:
        return f"x, _ = {call}"
    return f"return {call}[0]" if last else f"x = {call}[0]"


def _step_text(step: Step, inputs: Sequence[str], plan: Plan, text: _Text) -> str:
    """The expression of a step; what it needs in ``__init__`` and above is added."""
    if step.seed is None:
        assert step.branch is not None
        return _JOINS[step.branch].format(x=inputs[0], y=inputs[1])
    seed = step.seed
    setting = Setting(step.form, {rule.name: rule.base for rule in seed.sizes}, step.options)
    names = {r.name: step.sizes[r.name] for r in seed.sizes if r.argument and step.sizes.get(r.name)}
    used = dict.fromkeys(name for text_ in names.values() for name in _constants(text_, plan))
    text.arguments += [name for name in used if name not in text.arguments]
    if seed.spelling is not None and not seed.spelling.is_module:
        _remember(list(used), text)
        return seed.call(setting, inputs, names={k: _on_self(v, plan) for k, v in names.items()})
    attribute = _attribute(seed, text.attributes)
    if seed.spelling is None:
        _add_helpers(seed, text)
    text.init.append(f"self.{attribute} = {seed.construction(setting, names)}")
    text.has_state = text.has_state or seed.traits.has_parameters or seed.traits.has_buffers
    return seed.call(setting, inputs, attribute, names)


def _constants(expression: str, plan: Plan) -> list[str]:
    """Size constants that an expression names."""
    return [n.id for n in ast.walk(ast.parse(expression)) if isinstance(n, ast.Name) and n.id in plan.dims]


def _remember(names: Sequence[str], text: _Text) -> None:
    """Constants that ``forward`` reads: kept on ``self``."""
    for name in names:
        line = f"self.{name} = {name}"
        if line not in text.init:
            text.init.append(line)


def _on_self(expression: str, plan: Plan) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda m: f"self.{m[0]}" if m[0] in plan.dims else m[0], expression)


def _attribute(seed: Seed, taken: set[str]) -> str:
    """A name for a module on ``self``: what it is, numbered where there are several."""
    family = _ATTRIBUTES.get(family_of(seed.op))
    if key_of(seed.op) == "linear":
        family = "linear"
    plain = re.sub(r"_?\d+d$", "", _snake(seed.op.rsplit(".", 1)[-1]))
    name = family or (plain if seed.spelling is not None else "block")
    if name in taken:
        name = next(f"{name}{n}" for n in range(2, 20) if f"{name}{n}" not in taken)
    taken.add(name)
    return name


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _add_helpers(seed: Seed, text: _Text) -> None:
    """The class of a seed, with its helpers; each definition once, imports apart."""
    lines = seed.source.splitlines()
    for node in ast.parse(seed.source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            line = ast.unparse(node)
            if line not in text.imports and not line.startswith("from __future__"):
                text.imports.append(line)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            part = "\n".join(lines[first - 1 : node.end_lineno])
            if part not in text.helpers:
                text.helpers.append(part)


# -- the module ---------------------------------------------------------------------------------


def _module(plan: Plan, values: Mapping[str, int], text: _Text) -> str:
    if plan.dtype != "float32" and text.has_state:
        text.init.append(f"self.to(torch.{plan.dtype})")
    constants = [f"{name} = {values[name]}" for name in plan.dims]
    init_inputs = ["def get_init_inputs():", f"    return [{', '.join(text.arguments)}]"]
    sections = [_class(plan, text), constants, _get_inputs(plan), init_inputs]
    parts = [*text.helpers, *("\n".join(lines) for lines in sections if lines)]
    code = "\n\n\n".join(parts)
    return f"{_imports(text, code)}\n\n\n{code}\n"


def _imports(text: _Text, code: str) -> str:
    others = [line for line in text.imports if line not in _USUAL]
    standard = sorted(line for line in others if "torch" not in line)
    further = sorted(line for line in others if "torch" in line)
    usual = [_TORCH, _NN, *([_F] if re.search(r"\bF\.", code) else [])]
    return "\n".join([*standard, *([""] if standard else []), *usual, *further])


def _class(plan: Plan, text: _Text) -> list[str]:
    lines = ["class Model(nn.Module):", f'    """{_summary(plan)}"""', ""]
    if text.init:
        arguments = "".join(f", {name}" for name in text.arguments)
        lines += [f"    def __init__(self{arguments}):", "        super().__init__()"]
        lines += [*(f"        {line}" for line in text.init), ""]
    lines.append(f"    def forward(self, {', '.join(tensor.name for tensor in plan.inputs)}):")
    return lines + [f"        {line}" for line in text.forward]


def _summary(plan: Plan) -> str:
    """What the layer does, in words."""
    spoken = [_spoken(step) for step in plan.steps]
    start, end = (", then ", ", then ") if len(spoken) < 4 else (", ", ", then ")
    text = end.join([start.join(spoken[:-1]), spoken[-1]] if spoken[1:] else spoken)
    text = f"{text[0].upper()}{text[1:]}."
    return text if len(text) <= _WIDTH else f"A chain of {len(spoken)} operators."


_SPOKEN = {
    Branch.ADD: ("a residual sum", "the sum with a second input"),
    Branch.MUL: ("the product with an earlier value", "a gate by a second input"),
    Branch.SUB: ("the difference from an earlier value", "the difference from a second input"),
    Branch.MAXIMUM: ("the larger of it and an earlier value", "the larger of it and a second input"),
}


def _spoken(step: Step) -> str:
    """An operator in words."""
    if step.branch is not None:
        earlier, new = _SPOKEN[step.branch]
        return earlier if isinstance(step.others[0], int) else new
    name = step.op.rsplit(".", 1)[-1]
    return name if any(c.isupper() for c in name) else name.replace("_", " ").strip()


def _get_inputs(plan: Plan) -> list[str]:
    draws = [_drawn(tensor, plan.dtype) for tensor in plan.inputs]
    if len(draws) == 1:
        return ["def get_inputs():", f"    return [{draws[0]}]"]
    names = [tensor.name for tensor in plan.inputs]
    lines = [f"    {name} = {draw}" for name, draw in zip(names, draws, strict=True)]
    return ["def get_inputs():", *lines, f"    return [{', '.join(names)}]"]


def _drawn(tensor: Tensor, dtype: str) -> str:
    shape = ", ".join(axis.text for axis in tensor.axes)
    kind = dtype if tensor.dtype == "float32" else tensor.dtype
    return drawing(tensor.law, shape, dtype=kind, low=tensor.low, high=tensor.high)
