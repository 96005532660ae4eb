"""A seed: one reference operator as a self-contained class, and all that is known of how to use it.

Everything but the source is data, found by trying (cuda_agent.synthesis.mine): which sizes it takes and how
the shapes of its inputs follow from them, which options it has, which values its inputs may hold, and what
it does (keeps the shape, reduces, is linear, ...). Nothing here runs the source.

A setting picks a form (ranks), sizes and options; shapes, constructor arguments and code follow from it::

    setting = seed.sample(random.Random(0), sizes={"batch": 64})
    seed.arguments(setting)          # {"in_channels": 12, "out_channels": 8, "kernel_size": 3}
    seed.shapes(setting)             # ((64, 12, 20, 24),)
    seed.construction(setting)       # "nn.Conv2d(12, 8, 3, padding=1)"; "" for functions
    seed.call(setting, ["x"], "conv")  # "self.conv(x)"; "F.gelu(x)"
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.dims import evaluated
from cuda_agent.synthesis.jsonl import read_rows, write_rows
from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.seed_rules import (
    Form,
    InputRule,
    OptionRule,
    Setting,
    SizeRule,
    Spelling,
    Traits,
    Value,
    same,
)


class Origin(StrEnum):
    """The library that a seed was found in."""

    TORCH = "torch"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Seed:
    """One mined operator.

    Attributes:
        id: ``torch.nn.functional.gelu``, ``torch.nn.Conv2d``, ``transformers.LlamaRMSNorm``.
        op: as the public data set names it: ``nn.Conv2d``, ``torch.einsum``, ``F.gelu``.
        origin: library.
        kind: family in words (``conv``, ``norm``, ``attention``, ...).
        class_name: of the class to use in ``source`` (helpers may stand before it).
        source: imports and classes; nothing but torch and the standard library.
        sizes, options, inputs, forms: how to use it; the first form is the usual one.
        traits: what it does.
        spelling: inline form; ``None`` where the class itself is the form.
        aliases: other public names of the same operator.
        version: of the library (``torch 2.13.0``).
        licence: SPDX identifier of what the source derives from.
        derived_from: file it derives from.
    """

    id: str
    op: str
    origin: Origin
    kind: str
    class_name: str
    source: str
    sizes: tuple[SizeRule, ...] = ()
    options: tuple[OptionRule, ...] = ()
    inputs: tuple[InputRule, ...] = ()
    forms: tuple[Form, ...] = ()
    traits: Traits = field(default_factory=Traits)
    spelling: Spelling | None = None
    aliases: tuple[str, ...] = ()
    version: str = ""
    licence: str = ""
    derived_from: str = ""

    def base(self, form: int = 0) -> Setting:
        """The setting that was tried first."""
        options = {rule.name: rule.choices[0] for rule in self.options} | dict(self.forms[form].options)
        return Setting(form, {rule.name: rule.base for rule in self.sizes}, options)

    def sample(
        self, rng: random.Random, *, sizes: Mapping[str, int] | None = None, form: int | None = None
    ) -> Setting:
        """A setting at random; it may still be refused in rare combinations of options: run it.

        Args:
            sizes: wanted sizes by name; each is moved to the nearest that obeys its rule.
            form: index of a form, else drawn.
        """
        index = rng.randrange(len(self.forms)) if form is None else form
        wanted = sizes or {}
        options = {rule.name: _drawn(rng, rule) for rule in self.options}
        return Setting(
            index,
            {rule.name: rule.near(wanted.get(rule.name, rule.base)) for rule in self.sizes},
            options | dict(self.forms[index].options),
        )

    def arguments(self, setting: Setting) -> dict[str, Value]:
        """Arguments of the class's constructor, by name, in order."""
        sizes = {rule.name: setting.sizes[rule.name] for rule in self.sizes if rule.argument}
        return sizes | {rule.name: setting.options[rule.name] for rule in self.options}

    def shapes(self, setting: Setting) -> tuple[tuple[int, ...] | None, ...]:
        """Shapes of the inputs; ``None`` where one is left out."""
        return tuple(
            None if shape is None else tuple(evaluated(dim, setting.sizes) for dim in shape)
            for shape in self.forms[setting.form].shapes
        )

    def bounds(self, setting: Setting, index: int) -> tuple[int, int]:
        """Bounds of an integer input: ``low <= x < high``."""
        rule = self.inputs[index]
        return evaluated(rule.low, setting.sizes), evaluated(rule.high or "16", setting.sizes)

    def construction(self, setting: Setting, names: Mapping[str, str] | None = None) -> str:
        """Source of the call that makes the module; empty for functions.

        Args:
            names: expressions to write for sizes and options instead of their values, by name.
        """
        if self.spelling is None:
            return f"{self.class_name}({self._written(setting, names or {}, positional=())})"
        if not self.spelling.is_module:
            return ""
        text = self._written(setting, names or {}, positional=self.spelling.positional)
        return f"{self.spelling.target}({text})"

    def call(
        self,
        setting: Setting,
        inputs: Sequence[str],
        attribute: str = "",
        names: Mapping[str, str] | None = None,
    ) -> str:
        """Source of the application.

        Args:
            inputs: expressions of the inputs, in order; those that the form leaves out are ignored.
            attribute: name of the module on ``self``; unused for functions.
            names: expressions to write for sizes and options instead of their values, by name.
        """
        shapes = self.forms[setting.form].shapes
        given = {
            rule.name: text
            for rule, text, s in zip(self.inputs, inputs, shapes, strict=True)
            if s is not None
        }
        if self.spelling is None or self.spelling.is_module:
            return f"self.{attribute}({_by_position(given, self.inputs)})"
        listed = [given.pop(name) for name in self.spelling.listed if name in given]
        if listed:
            given = {self.spelling.positional[0]: f"[{', '.join(listed)}]", **given}
        text = self._written(setting, names or {}, positional=self.spelling.positional, inputs=given)
        return f"{self.spelling.target}({text})"

    def _written(
        self,
        setting: Setting,
        names: Mapping[str, str],
        *,
        positional: Sequence[str],
        inputs: Mapping[str, str] | None = None,
    ) -> str:
        """Arguments as source: positional ones, then keywords; options at their default are left out."""
        texts = dict(inputs or {})
        defaults = {rule.name: rule for rule in self.options}
        for name, value in self.arguments(setting).items():
            rule = defaults.get(name)
            if rule is not None and not rule.required and name not in names and same(value, rule.default):
                continue
            texts[name] = names.get(name, repr(value))
        parts = []
        for name in positional:
            if name not in texts:
                break
            parts.append(texts.pop(name))
        return ", ".join([*parts, *(f"{name}={text}" for name, text in texts.items())])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Seed:
        """Inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data are of another form.
        """
        spelling = data["spelling"]
        return cls(
            **{
                **data,
                "origin": Origin(data["origin"]),
                "sizes": tuple(SizeRule(**row) for row in data["sizes"]),
                "options": tuple(OptionRule(**_frozen(row)) for row in data["options"]),
                "inputs": tuple(
                    InputRule(**{**_frozen(row), "law": Law(row["law"])}) for row in data["inputs"]
                ),
                "forms": tuple(Form(**_frozen(row)) for row in data["forms"]),
                "traits": Traits(**_frozen(data["traits"])),
                "spelling": None if spelling is None else Spelling(**_frozen(spelling)),
                "aliases": tuple(data["aliases"]),
            }
        )


def read_seeds(path: Path) -> Iterator[Seed]:
    """The seeds of a JSON lines file.

    Raises:
        UsageError: the file cannot be read, or a row is no seed.
    """
    for row in read_rows(path):
        try:
            yield Seed.from_dict(row)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: {row.get('id', 'a row')} is no seed: {error}",
                "Its form: cuda_agent/synthesis/seed.py.",
            ) from None


def write_seeds(path: Path, seeds: Iterable[Seed]) -> None:
    """Replace a file by seeds, at once or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    write_rows(path, (seed.to_dict() for seed in seeds))


def _drawn(rng: random.Random, rule: OptionRule) -> Value:
    return rng.choice(rule.choices)


def _by_position(given: Mapping[str, str], rules: Sequence[InputRule]) -> str:
    """Inputs as positional arguments, by keyword after the first that is left out."""
    parts = []
    gap = False
    for rule in rules:
        if rule.name not in given:
            gap = True
            continue
        parts.append(f"{rule.name}={given[rule.name]}" if gap else given[rule.name])
    return ", ".join(parts)


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _tuples(value) for key, value in row.items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
