"""Seeds: what follows from a setting, and the way to disk and back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.dims import evaluated
from cuda_agent.synthesis.law import Law, drawing
from cuda_agent.synthesis.seed import Origin, Seed, read_seeds, write_seeds
from cuda_agent.synthesis.seed_rules import Form, InputRule, OptionRule, SizeRule, Spelling

CONV = Seed(
    id="torch.nn.Conv2d",
    op="nn.Conv2d",
    origin=Origin.TORCH,
    kind="conv",
    class_name="Conv2d",
    source="",
    sizes=(
        SizeRule("in_channels", 12, multiple_of=4, argument=True),
        SizeRule("out_channels", 8, multiple_of=4, argument=True),
        SizeRule("batch", 3),
        SizeRule("height", 20, least=3),
    ),
    options=(
        OptionRule("kernel_size", (3, 5, (3, 3)), required=True),
        OptionRule("padding", (0, 1, "same"), default=0),
        OptionRule("groups", (4,), default=1),
    ),
    inputs=(InputRule("input"),),
    forms=(
        Form((("batch", "in_channels", "height", "2 * height"),)),
        Form((("in_channels", "height", "2 * height"),), {"padding": 1}),
    ),
    spelling=Spelling("nn.Conv2d", True, ("in_channels", "out_channels", "kernel_size")),
)
LERP = Seed(
    id="torch.lerp",
    op="torch.lerp",
    origin=Origin.TORCH,
    kind="pointwise",
    class_name="Lerp",
    source="",
    sizes=(SizeRule("rows", 3),),
    options=(OptionRule("dim", (-1, 0), default=-1),),
    inputs=(InputRule("input"), InputRule("end"), InputRule("weight", optional=True)),
    forms=(Form((("rows",), ("rows",), None)),),
    spelling=Spelling("torch.lerp", False, ("input", "end")),
)


def test_setting_gives_arguments_shapes_and_code() -> None:
    base = CONV.base()
    assert CONV.shapes(base) == ((3, 12, 20, 40),)
    assert CONV.arguments(base) == {
        "in_channels": 12,
        "out_channels": 8,
        "kernel_size": 3,
        "padding": 0,
        "groups": 4,
    }
    assert CONV.construction(base) == "nn.Conv2d(12, 8, 3, groups=4)"
    assert CONV.construction(base, {"in_channels": "channels"}) == "nn.Conv2d(channels, 8, 3, groups=4)"
    assert CONV.call(base, ["x"], "conv") == "self.conv(x)"
    second = CONV.base(1)
    assert CONV.shapes(second) == ((12, 20, 40),)
    assert CONV.construction(second) == "nn.Conv2d(12, 8, 3, padding=1, groups=4)"
    assert LERP.construction(LERP.base()) == ""
    assert LERP.call(LERP.base(), ["x", "y", "w"]) == "torch.lerp(x, y)"


def test_listed_inputs_are_one_argument() -> None:
    cat = Seed(
        id="torch.cat",
        op="torch.cat",
        origin=Origin.TORCH,
        kind="join",
        class_name="Cat",
        source="",
        options=(OptionRule("dim", (1, -1), default=0),),
        inputs=(InputRule("a"), InputRule("b")),
        forms=(Form((("4", "3"), ("4", "3"))),),
        spelling=Spelling("torch.cat", False, ("tensors",), ("a", "b")),
    )
    assert cat.call(cat.base(), ["x", "y"]) == "torch.cat([x, y], dim=1)"


def test_samples_obey_the_rules_and_the_wish() -> None:
    rng = random.Random(0)
    for _ in range(50):
        setting = CONV.sample(rng, sizes={"in_channels": 4095, "height": 1})
        assert setting.sizes["in_channels"] == 4096
        assert setting.sizes["height"] == 3
        assert setting.options["kernel_size"] in (3, 5, (3, 3))
    assert SizeRule("n", 4, multiple_of=4, most=10).near(100) == 8


def test_way_to_disk_and_back(tmp_path: Path) -> None:
    write_seeds(tmp_path / "seeds.jsonl", [CONV, LERP])
    assert list(read_seeds(tmp_path / "seeds.jsonl")) == [CONV, LERP]
    (tmp_path / "bad.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(UsageError, match="x is no seed"):
        list(read_seeds(tmp_path / "bad.jsonl"))


def test_dimensions_are_sums_and_products_of_sizes_and_nothing_else() -> None:
    assert evaluated("2 * n // 3 + 1 - m", {"n": 10, "m": 2}) == 5
    for text in ("__import__('os')", "n.real", "n ** 2", "1.5", ""):
        with pytest.raises(ValueError, match="no dimension"):
            evaluated(text, {"n": 1})


@pytest.mark.parametrize("law", list(Law))
def test_each_law_draws_what_it_says(law: Law) -> None:
    torch.manual_seed(0)
    dtype = {Law.COMPLEX: "complex64", Law.INTEGERS: "int64"}.get(law, "float32")
    text = drawing(law, "50, 6, 6", dtype=dtype, low="2", high="7")
    x = eval(text, {"torch": torch})
    assert x.shape == (50, 6, 6)
    holds = {
        Law.NORMAL: lambda: x.mean().abs() < 0.1 and 0.9 < x.std() < 1.1,
        Law.POSITIVE: lambda: x.min() >= 0.1,
        Law.UNIT: lambda: x.min() >= 0 and x.max() < 1,
        Law.SYMMETRIC_UNIT: lambda: x.min() < -0.9 and x.min() >= -1 and x.max() < 1,
        Law.ABOVE_ONE: lambda: x.min() > 1,
        Law.PROBABILITIES: lambda: torch.allclose(x.sum(-1), torch.ones(50, 6)) and x.min() >= 0,
        Law.LOG_PROBABILITIES: lambda: torch.allclose(x.exp().sum(-1), torch.ones(50, 6)),
        Law.SIGNS: lambda: set(x.unique().tolist()) == {-1.0, 1.0},
        Law.BITS: lambda: set(x.unique().tolist()) == {0.0, 1.0},
        Law.COUNTS: lambda: torch.equal(x, x.round()) and x.min() >= 0 and x.max() > 1,
        Law.SORTED: lambda: bool((x.diff() >= 0).all()),
        Law.POSITIVE_DEFINITE: lambda: torch.linalg.eigvalsh(x).min() > 0 and torch.allclose(x, x.mT),
        Law.INVERTIBLE: lambda: torch.linalg.cond(x).max() < 100,
        Law.TRIANGULAR: lambda: torch.equal(x, x.tril()) and x.diagonal(dim1=-2, dim2=-1).min() > 1,
        Law.COMPLEX: lambda: x.is_complex() and x.imag.abs().max() > 0,
        Law.INTEGERS: lambda: x.min() == 2 and x.max() == 6 and x.dtype == torch.int64,
        Law.DISTINCT: lambda: torch.equal(x.sort().values[0, 0], torch.arange(6)),
        Law.BOOL: lambda: x.dtype == torch.bool and 0.3 < x.float().mean() < 0.7,
    }
    assert bool(holds[law]())
