"""Input laws: ``--inputs`` in, the source of ``get_inputs`` out.

One ``--inputs`` is one input case, a comma-separated list with one item for each argument of
``forward``::

    [WEIGHT*]ITEM,ITEM,...

    f32[8,64]        tensor, standard normal         f64 f32 f16 bf16
    f32[8,64]:rand   tensor, uniform in [0, 1)
    i64[8]<1000      tensor, integers 0 .. 999       i64 i32 i16 i8 u8 (u8 alone means u8<256)
    bool[8,8]        tensor, true half of the time
    f32[]            tensor with no dimension
    3  0.5  true  none                               plain Python values

``WEIGHT`` is the share of calls with this shape: ``--inputs '0.7*f32[8,64]' --inputs '0.3*f32[32,64]'``.
Weights need not sum to 1; leaving all of them out weighs the cases alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.errors import UsageError

FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
INTEGERS = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"}
_LIMITS = {"int64": 2**63, "int32": 2**31, "int16": 2**15, "int8": 2**7, "uint8": 2**8}
_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\[(?P<shape>[^\]]*)\](?P<law>.*)", re.DOTALL)
_WEIGHT = re.compile(r"\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*\*")
_REMEDY = "Write items such as f32[8,64], i64[8]<1000, bool[4], 0.5; see cuda-agent optimize --help."


@dataclass(frozen=True)
class TensorInput:
    """The law of one tensor argument.

    Attributes:
        dtype: PyTorch's name, ``float32``.
        shape: sizes.
        mean, spread: of a floating tensor; a ``spread`` of 0 fills it with ``mean``. For a bool
            tensor ``mean`` is the share of true values.
        uniform: draw in [0, 1) instead of a normal.
        low, high: integers are drawn in ``low <= x < high``; floating draws are cut to
            ``low <= x <= high`` where given.
    """

    dtype: str
    shape: tuple[int, ...]
    mean: float = 0.0
    spread: float = 1.0
    uniform: bool = False
    low: float | None = None
    high: float | None = None

    def expression(self) -> str:
        """Python source that draws one such tensor (no device named: the default device holds)."""
        if self.dtype == "bool":
            return f"torch.rand({self.shape}) < {self.mean!r}"
        if not self.dtype.startswith(("float", "bfloat")):
            return f"torch.randint({self.low}, {self.high}, {self.shape}, dtype=torch.{self.dtype})"
        return self._floating()

    def _floating(self) -> str:
        dtype = f"dtype=torch.{self.dtype}"
        if self.uniform:
            return f"torch.rand({self.shape}, {dtype})"
        if self.spread == 0.0:
            return f"torch.full({self.shape}, {self.mean!r}, {dtype})"
        text = f"torch.randn({self.shape}, {dtype})"
        if (self.mean, self.spread) != (0.0, 1.0):
            text = f"({text} * {self.spread!r} + {self.mean!r})"
        if self.low is not None or self.high is not None:
            text += f".clamp({self.low!r}, {self.high!r})"
        return text


@dataclass(frozen=True)
class PlainInput:
    """An argument that is no tensor: passed as it is."""

    value: bool | int | float | str | None

    def expression(self) -> str:
        """Python source of the value."""
        return repr(self.value)


Input = TensorInput | PlainInput


@dataclass(frozen=True)
class InputCase:
    """The arguments of one call; ``weight`` is its share among all cases, above 0."""

    items: tuple[Input, ...]
    weight: float = 1.0


def parse_inputs(specs: Sequence[str]) -> tuple[InputCase, ...]:
    """Read every ``--inputs``; the grammar is in the module's docstring.

    Raises:
        UsageError: an item that does not parse, cases of different length, weights on some only.
    """
    cases, weighted = [], []
    for spec in specs:
        match = _WEIGHT.match(spec)
        weighted.append(match is not None)
        weight = _weight(match.group(1), spec) if match else 1.0
        items = tuple(_item(text.strip(), spec) for text in _split(spec[match.end() if match else 0 :]))
        cases.append(InputCase(items, weight))
    if len(set(weighted)) > 1:
        raise UsageError("some --inputs have a weight and some have none", "Weigh all of them or none.")
    if len({len(case.items) for case in cases}) > 1:
        raise UsageError("--inputs differ in their number of items", "Give each case the same arguments.")
    return tuple(cases)


def inputs_source(cases: Sequence[InputCase]) -> str:
    """Source of ``get_inputs`` (and of ``CASE_WEIGHTS`` where there are several cases)."""
    if len(cases) == 1:
        return f"def get_inputs():\n    return {_list(cases[0])}\n"
    total = sum(case.weight for case in cases)
    weights = ", ".join(f"{case.weight / total:.6g}" for case in cases)
    lines = [f"CASE_WEIGHTS = [{weights}]", "", "", "def get_inputs(case=0):"]
    for index, case in enumerate(cases):
        lines += [f"    if case == {index}:", f"        return {_list(case)}"]
    lines.append('    raise ValueError(f"there is no input case {case}")')
    return "\n".join(lines) + "\n"


def _list(case: InputCase) -> str:
    return "[" + ", ".join(item.expression() for item in case.items) + "]"


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]


def _weight(text: str, spec: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value <= 0.0:
        raise UsageError(f"--inputs {spec!r}: weight {text} is not a number above 0", _REMEDY)
    return value


def _item(text: str, spec: str) -> Input:
    match = _TENSOR.fullmatch(text)
    if match is None:
        return PlainInput(_plain(text, spec))
    name, law = match["dtype"], match["law"].strip()
    shape = _shape(match["shape"], text)
    if name in FLOATS:
        if law not in ("", ":rand"):
            raise UsageError(
                f"--inputs item {text!r}: {law!r} is no law of a float", "Leave it out, or use :rand."
            )
        return TensorInput(FLOATS[name], shape, uniform=law == ":rand")
    if name in INTEGERS:
        return TensorInput(INTEGERS[name], shape, low=0, high=_bound(law, INTEGERS[name], text))
    if name == "bool":
        if law:
            raise UsageError(f"--inputs item {text!r}: a bool has no bound", "Write bool[...] alone.")
        return TensorInput("bool", shape, mean=0.5)
    known = ", ".join([*FLOATS, *INTEGERS, "bool"])
    raise UsageError(f"--inputs item {text!r}: unknown dtype {name!r}", f"Choose one of: {known}.")


def _shape(text: str, item: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError(
            f"--inputs item {item!r}: shape [{text}] is not a list of sizes above 0",
            "Separate sizes with commas: f32[8,64].",
        )
    return tuple(int(size) for size in sizes)


def _bound(law: str, dtype: str, item: str) -> int:
    if not law and dtype == "uint8":
        return 256
    if not law:
        raise UsageError(
            f"--inputs item {item!r} has no bound", f"Write {item}<N to draw values from 0 to N-1."
        )
    text = law.removeprefix("<").strip()
    if not law.startswith("<") or not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise UsageError(f"--inputs item {item!r}: {law!r} is no bound", "Write <N with N at least 1.")
    if int(text) > _LIMITS[dtype]:
        raise UsageError(f"--inputs item {item!r}: {text} is more than {dtype} holds", "Lower the bound.")
    return int(text)


def _plain(text: str, spec: str) -> bool | int | float | None:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    what = f"item {text!r} is no tensor and no number" if text else "an item is empty"
    raise UsageError(f"--inputs {spec!r}: {what}", _REMEDY)
