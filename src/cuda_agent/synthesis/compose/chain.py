"""A chain of seeds under construction: what fits on what, and whether it makes sense to put it there."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from cuda_agent.synthesis.compose.abstract import Made, apply
from cuda_agent.synthesis.compose.binding import Bound, Sizes, bind, recognised
from cuda_agent.synthesis.compose.naming import well_named
from cuda_agent.synthesis.compose.plan import NUM_PROBES, Axis, Branch, Plan, Step, Tensor
from cuda_agent.synthesis.dims import evaluated
from cuda_agent.synthesis.families import Family, family_of
from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import Form, Setting
from cuda_agent.synthesis.words import key_of, words

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_ANY_FLOAT = (Law.NORMAL, Law.SYMMETRIC_UNIT)
_GIVES = {
    Law.UNIT: words("sigmoid hardsigmoid softmax softmin"),
    Law.POSITIVE: words("exp exp2 softplus cosh"),
}
_ACCEPTS = {
    Law.UNIT: (Law.POSITIVE, Law.UNIT, *_ANY_FLOAT),
    Law.POSITIVE: (Law.POSITIVE, *_ANY_FLOAT),
}
_MIN_ELEMENTS_LEFT = 64
_INPUT_NAMES = ("x", "y", "z", "w", "v", "u")
_PLAIN_NAMES = words("input self other input1 input2 input3 tensor tensor1 tensor2 a b")


@dataclass
class Chain:
    """Steps so far.

    Attributes:
        sizes: size constants.
        inputs: of the task.
        steps, results: what was put on, and what each gives.
    """

    rng: random.Random
    sizes: Sizes = field(default_factory=Sizes)
    inputs: list[Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)

    @property
    def current(self) -> Tensor | None:
        """What the next step is put on."""
        return self.results[-1] if self.results else None

    def plan(self, dtype: str = "float32") -> Plan:
        """The chain as a finished plan, its size constants named as a person would."""
        plan = Plan(dict(self.sizes.dims), tuple(self.inputs), tuple(self.steps), tuple(self.results), dtype)
        return well_named(plan)

    # -- putting on -----------------------------------------------------------------------------

    def put(self, seed: Seed, *, last: bool) -> bool:
        """Put a seed on the chain; false where it does not fit or makes no sense there.

        Args:
            seed: the operator.
            last: nothing follows.
        """
        if not self._sensible(seed, last=last):
            return False
        for index in self._forms(seed):
            sizes = self.sizes.copy()
            axes = self.current.axes if self.current else ()
            bound = bind(seed, seed.forms[index].shapes, axes, sizes)
            if bound is not None and self._run(seed, index, bound, sizes, last=last):
                return True
        return False

    def _forms(self, seed: Seed) -> list[int]:
        """Forms whose first input has the rank at hand; the usual one first when the chain begins."""
        current = self.current
        fitting = [
            index
            for index, form in enumerate(seed.forms)
            if form.shapes
            and form.shapes[0] is not None
            and (current is None or len(form.shapes[0]) == len(current.axes))
        ]
        if current is None and self.rng.random() < 0.4:
            self.rng.shuffle(fitting)
        return fitting[:3]

    def _sensible(self, seed: Seed, *, last: bool) -> bool:
        if not seed.forms or not seed.inputs:
            return False
        traits = seed.traits
        if not last and (traits.outputs[:1] or ("float32",))[0] not in _FLOATS:
            return False
        current = self.current
        if current is None:
            return True
        first = seed.inputs[0]
        if "float32" not in first.dtypes or first.law not in _ACCEPTS.get(current.law, _ANY_FLOAT):
            return False
        before = self.steps[-1].seed
        return before is None or not _pointless(before, seed)

    def _run(self, seed: Seed, index: int, bound: Bound, sizes: Sizes, *, last: bool) -> bool:
        """Try the seed on fake tensors at every probe; commit where it gives what the chain can use."""
        form = seed.forms[index]
        options = dict(seed.sample(self.rng, form=index).options)
        first = self.current or self._new_input(seed, 0, form.shapes[0] or (), bound, taken=())
        others = self._others(seed, form, bound, first)
        made: list[Made] = []
        for probe in range(NUM_PROBES):
            setting = Setting(index, bound.values[probe], options)
            shapes = [_spec(tensor, probe) for tensor in (first, *others)]
            found = apply(seed, seed.arguments(setting), shapes)
            if found is None:
                return False
            made.append(found)
        if not self._usable(made, last=last):
            return False
        step = Step(
            seed=seed,
            options=options,
            form=index,
            sizes=dict(bound.texts),
            others=tuple(others),
            num_outputs=made[0].num_outputs,
        )
        self._commit(step, first, made, sizes)
        return True

    def _usable(self, made: Sequence[Made], *, last: bool) -> bool:
        if len({len(found.shape) for found in made}) > 1:
            return False
        too_little = any(prod(found.shape) < _MIN_ELEMENTS_LEFT for found in made)
        return last or not (too_little or made[0].dtype not in _FLOATS)

    def _commit(self, step: Step, first: Tensor, made: Sequence[Made], sizes: Sizes) -> None:
        axes = recognised([found.shape for found in made], first.axes, sizes)
        if self.current is None:
            self.inputs.append(first)
        self.inputs += [other for other in step.others if isinstance(other, Tensor)]
        self.sizes = sizes
        self.steps.append(step)
        assert step.seed is not None
        self.results.append(Tensor("x", axes, dtype=made[0].dtype, law=_law_after(step.seed)))

    # -- inputs ---------------------------------------------------------------------------------

    def _new_input(
        self, seed: Seed, position: int, shape: tuple[str, ...], bound: Bound, *, taken: Sequence[Tensor]
    ) -> Tensor:
        """An input of the task for an input of a seed."""
        rule = seed.inputs[position]
        axes = tuple(
            Axis(_written(text, bound.texts), tuple(evaluated(text, found) for found in bound.values))
            for text in shape
        )
        return Tensor(
            self._input_name(rule.name if position else "x", taken),
            axes,
            dtype=rule.dtypes[0],
            law=rule.law,
            low=_written(rule.low, bound.texts),
            high=_written(rule.high or "16", bound.texts),
        )

    def _input_name(self, wanted: str, taken: Sequence[Tensor]) -> str:
        used = {tensor.name for tensor in (*self.inputs, *taken)} | set(self.sizes.dims)
        if len(wanted) > 1 and wanted not in _PLAIN_NAMES and wanted not in used:
            return wanted
        return next(name for name in _INPUT_NAMES if name not in used)

    def _others(self, seed: Seed, form: Form, bound: Bound, first: Tensor) -> list[Tensor | None]:
        """The seed's further inputs: new ones of the task."""
        found: list[Tensor | None] = []
        for position, shape in enumerate(form.shapes[1:], start=1):
            taken = [first, *(tensor for tensor in found if tensor is not None)]
            found.append(
                None if shape is None else self._new_input(seed, position, shape, bound, taken=taken)
            )
        return found

    # -- branches -------------------------------------------------------------------------------

    def join(self) -> bool:
        """Join the result with an earlier tensor of its shape, or a new input; false where none fits."""
        current = self.current
        if current is None or current.dtype not in _FLOATS or self.steps[-1].branch is not None:
            return False
        earlier: list[int] = [
            index
            for index, tensor in enumerate([self.inputs[0], *self.results[:-1]], start=-1)
            if tensor.same_shape(current) and tensor.dtype == current.dtype
        ]
        plain = all(axis.text.isidentifier() for axis in current.axes)
        if not earlier and not plain:
            return False
        other: int | Tensor
        if plain and (not earlier or self.rng.random() < 0.3):
            other = Tensor(self._input_name("x", ()), current.axes, dtype=current.dtype)
            self.inputs.append(other)
        else:
            other = self.rng.choice(earlier)
        branch = self.rng.choices(list(Branch), [6, 4, 1, 1])[0]
        self.steps.append(Step(branch=branch, others=(other,)))
        self.results.append(replace(current, law=Law.NORMAL))
        return True


def _pointless(before: Seed, seed: Seed) -> bool:
    """Two operators in a row that a person would not write: one twice, two moves, two activations."""
    traits = seed.traits
    once = traits.elementwise or traits.idempotent or traits.moves_only or traits.reduces
    if seed.id == before.id and once:
        return True
    if traits.moves_only and before.traits.moves_only:
        return True
    pointwise = traits.elementwise and before.traits.elementwise
    return pointwise and family_of(seed.op) is Family.ACTIVATION and family_of(before.op) is Family.ACTIVATION


def _spec(tensor: Tensor | None, probe: int) -> tuple[tuple[int, ...], str] | None:
    if tensor is None:
        return None
    return tuple(axis.values[probe] for axis in tensor.axes), tensor.dtype


class _Rename(ast.NodeTransformer):
    """Size names of a seed become expressions over the task's constants."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self._texts.get(node.id) or node.id, mode="eval").body


def _written(expression: str, texts: Mapping[str, str]) -> str:
    """A seed's dimension over the task's constants."""
    return ast.unparse(_Rename(texts).visit(ast.parse(expression, mode="eval").body))


def _law_after(seed: Seed) -> Law:
    key = key_of(seed.op)
    return next((law for law, names in _GIVES.items() if key in names), Law.NORMAL)
