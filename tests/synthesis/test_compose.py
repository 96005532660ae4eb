"""Composition from seeds written by hand: shapes, source, sizes, mixes, shards."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter

import handmade
import pytest

from cuda_agent.errors import TaskError, UsageError
from cuda_agent.synthesis.compose.binding import Sizes, bind
from cuda_agent.synthesis.compose.chain import Chain
from cuda_agent.synthesis.compose.mix import BALANCED, PAPER, find_mix
from cuda_agent.synthesis.compose.plan import Axis
from cuda_agent.synthesis.compose.random_composer import RandomComposer
from cuda_agent.synthesis.compose.sizing import cost_of
from cuda_agent.synthesis.compose.source import source_of
from cuda_agent.synthesis.record import Form, TaskRecord
from cuda_agent.synthesis.scale import size_constants, with_sizes
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.target import CPU, H200

CHAIN = '''import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Conv2d, then gelu, then amax."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = F.gelu(x)
        return torch.amax(x, {dim})


batch_size = 2
in_channels = 3
out_channels = 4
kernel_size = 3
height = 8
width = 9


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
'''


def composer(number: int = 0, target: object = CPU) -> RandomComposer:
    """Of the seeds by hand."""
    return RandomComposer(handmade.SEEDS, BALANCED, target, seed=number)  # type: ignore[arg-type]


def records(count: int) -> list[TaskRecord]:
    """The first tasks."""
    return [record for _, record in itertools.islice(composer().compose(), count)]


def put(*seeds: Seed, seed: int = 0) -> Chain | None:
    """A chain of the given seeds in order, where they fit."""
    chain = Chain(random.Random(seed))
    fits = all(chain.put(s, last=index == len(seeds) - 1) for index, s in enumerate(seeds))
    return chain if fits else None


def test_a_chain_reads_as_a_person_would_write_it() -> None:
    chain = put(handmade.CONV, handmade.GELU, handmade.AMAX)
    assert chain is not None
    values = dict(batch_size=2, in_channels=3, out_channels=4, kernel_size=3, height=8, width=9)
    plan = chain.plan()
    code = source_of(plan, values, random.Random(0))
    assert code.replace("dim=-1", "{dim}").replace("dim=1", "{dim}") == CHAIN


def test_every_task_runs_at_both_sizes_and_declares_what_it_writes() -> None:
    made = records(40)
    for record in made:
        for form in Form:
            assert cost_of(record.code_at(form)) is not None, record.code
        kind, _, number = record.data_source.partition("#")
        assert kind == "transformers" or len(record.ops) == int(number)
        written = record.code.replace("_", "").lower()
        joins = {"torch.add", "torch.mul", "torch.sub"}
        assert all(
            op in joins or op.rsplit(".", 1)[-1].replace("_", "").lower() in written for op in record.ops
        )
    assert {record.data_source for record in made} >= {"torch#1", "torch#2", "torch#3", "transformers"}


def test_every_size_constant_and_import_is_used() -> None:
    for record in records(30):
        tree = ast.parse(record.code)
        names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        assert list(record.sizes) == list(size_constants(record.code))
        assert all(names[size] > 1 for size in record.sizes), record.code
        imported = [a.asname or a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names]
        assert all(names[name] for name in imported), record.code


def test_the_large_form_is_sized_for_the_target() -> None:
    for number, record in itertools.islice(composer(3, H200).compose(), 25):
        cost = cost_of(record.code)
        assert cost is not None, number
        assert cost.fits(H200)
        assert 300 < cost.estimate_us(H200) < 2e5, record.code


def test_equal_seeds_give_equal_tasks_and_shards_are_parts_of_the_whole() -> None:
    whole = {n: r.id for n, r in itertools.takewhile(lambda p: p[0] < 20, composer().compose())}
    parts: dict[int, str] = {}
    for shard in range(2):
        made = itertools.takewhile(lambda p: p[0] < 20, composer().compose(start=shard, step=2))
        parts |= {n: r.id for n, r in made}
    assert parts == whole
    assert composer(1).one(0) != composer().one(0)


def test_sizes_follow_from_the_shape_at_hand() -> None:
    sizes = Sizes()
    shape = handmade.GROUP_NORM.forms[0].shapes
    first = bind(handmade.CONV, handmade.CONV.forms[0].shapes, (), sizes)
    assert first is not None
    axes = [Axis(name, sizes.dims[name].probes) for name in ("batch_size", "out_channels", "height", "width")]
    bound = bind(handmade.GROUP_NORM, shape, axes, sizes)
    assert bound is not None
    assert bound.texts["num_channels"] == "out_channels"
    assert sizes.dims["out_channels"].multiple_of == 4
    assert bind(handmade.GROUP_NORM, shape, [axes[0], Axis("", (50, 98)), *axes[2:]], Sizes()) is None


def test_what_makes_no_sense_is_not_put_together() -> None:
    assert put(handmade.LOG) is not None
    assert put(handmade.CONV, handmade.LOG) is None  # negative values
    assert put(handmade.EXP, handmade.LOG) is not None
    assert put(handmade.TANH, handmade.TANH) is None
    assert put(handmade.LINEAR, handmade.CONV) is None  # another rank


def test_a_second_input_agrees_with_the_first() -> None:
    chain = put(handmade.LINEAR, handmade.BMM)
    assert chain is not None
    x, mat2 = chain.plan().inputs
    assert [axis.text for axis in x.axes] == ["batch_size", "length", "in_features"]
    assert [axis.text for axis in mat2.axes] == ["batch_size", "out_features", "columns"]


def test_mixes() -> None:
    rng = random.Random(0)
    drawn = Counter(PAPER.draw(rng) for _ in range(20_000))
    assert drawn["torch#2"] / 20_000 == pytest.approx(0.8377, abs=0.01)
    for mix in (PAPER, BALANCED):
        assert sum(mix.shares.values()) == pytest.approx(1.0)
    with pytest.raises(UsageError, match="paper, balanced"):
        find_mix("other")


def test_sizes_are_rewritten_and_nothing_else() -> None:
    code = "batch_size = 64  # rows\nlength = 128\n\n\ndef get_inputs():\n    batch_size = 3\n"
    assert with_sizes(code, {"batch_size": 2}) == code.replace("64", "2")
    with pytest.raises(TaskError, match="no size constant width"):
        with_sizes(code, {"width": 2})
