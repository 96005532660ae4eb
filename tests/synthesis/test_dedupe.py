"""Contamination, near-duplicates, caps, splits: on graphs traced from real modules."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from torch import nn

from cuda_agent.synthesis.dedupe import graph
from cuda_agent.synthesis.dedupe.contamination import Match, Screen, reference
from cuda_agent.synthesis.dedupe.near import EXACT_UP_TO, jaccard, near_pairs, shingles
from cuda_agent.synthesis.dedupe.selection import Caps, Split, capped, rows_of, split_of, tier_of
from cuda_agent.synthesis.filters.tracing import trace
from cuda_agent.synthesis.record import TaskRecord

TASK = """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        {body}
        return x
"""


class Chain(nn.Module):
    """A chain of functions and layers."""

    def __init__(self, *steps: object) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList([step for step in steps if isinstance(step, nn.Module)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)  # type: ignore[operator]
        return x


def rows(*steps: object, shape: tuple[int, ...] = (2, 4, 6)) -> list[graph.Row]:
    """The normalised graph of a chain on one input."""
    return graph.rows_of(trace(Chain(*steps).eval(), [torch.randn(shape)]))


def test_spellings_of_one_graph_are_equal() -> None:
    relus = [torch.relu, nn.ReLU(), torch.Tensor.relu, nn.functional.relu, lambda x: x.clone().relu_()]
    keys = {graph.graph_key(rows(relu, lambda x: x * 2)) for relu in relus}
    assert len(keys) == 1
    flattened = [lambda x: x.flatten(1), lambda x: x.view(2, 24), lambda x: x.reshape(x.shape[0], -1)]
    assert len({graph.graph_key(rows(flat, torch.exp)) for flat in flattened}) == 1


def test_ranks_and_hyper_parameters_tell_graphs_apart_and_sizes_do_not() -> None:
    softmax = graph.graph_key(rows(nn.Softmax(-1)))
    assert softmax == graph.graph_key(rows(nn.Softmax(-1), shape=(8, 16, 32)))
    assert softmax != graph.graph_key(rows(nn.Softmax(1)))
    assert softmax != graph.graph_key(rows(nn.Softmax(-1), shape=(8, 16)))
    assert graph.cluster_key(rows(nn.Softmax(-1))) == graph.cluster_key(rows(nn.Softmax(1), shape=(8, 16)))
    assert graph.graph_key(rows(nn.Conv1d(4, 4, 3))) != graph.graph_key(rows(nn.Conv1d(4, 4, 5)))


def test_dead_operators_are_no_part_of_the_graph() -> None:
    def dead(x: torch.Tensor) -> torch.Tensor:
        torch.sin(x)
        return x

    assert graph.graph_key(rows(dead, torch.exp)) == graph.graph_key(rows(torch.exp))


def screen(*steps: object, shape: tuple[int, ...] = (2, 4, 6)) -> Screen:
    """A screen of one evaluation task whose tree is unlike any other here."""
    code = TASK.format(body="x = [i for i in range(3) if i and x][0]") * 2
    return Screen([reference("level2/1", code, rows(*steps, shape=shape))])


def test_a_fused_pair_is_contamination_at_any_size_and_in_any_order() -> None:
    code = TASK.format(body="x = torch.tanh(self.linear(x))")
    near = screen(torch.tanh, nn.Softmax(-1))
    assert near.nearest(code, rows(torch.tanh, nn.Softmax(-1), shape=(32, 64, 128))).match is Match.GRAPH
    assert near.nearest(code, rows(nn.Softmax(-1), torch.tanh)).match is Match.SIGNATURE
    assert near.nearest(code, rows(torch.tanh, nn.Softmax(1))).match is None


def test_a_single_operator_is_contamination_at_its_own_size_only() -> None:
    code = TASK.format(body="x = torch.tanh(x)")
    near = screen(nn.Softmax(-1))
    assert near.nearest(code, rows(nn.Softmax(-1), shape=(4, 4, 6))).match is Match.GRAPH
    assert near.nearest(code, rows(nn.Softmax(-1), shape=(40, 40, 60))).match is None
    assert near.nearest(code, rows(nn.Softmax(-1), shape=(8, 6))).match is None


def test_a_copy_with_other_names_is_found_by_its_tree() -> None:
    original = TASK.format(body="x = torch.tanh(self.linear(x)) + x")
    copy = original.replace("linear", "projection").replace("x", "value")
    found = Screen([reference("level1/1", original)]).nearest(copy, ())
    assert found.match is Match.TREE
    assert found.similarity == pytest.approx(1.0)


def test_near_duplicates_differ_in_little_and_other_operators_are_other_tasks() -> None:
    a, b, c = (
        shingles(TASK.format(body=body))
        for body in ("x = torch.tanh(x)", "y = torch.tanh(x)", "x = torch.exp(x).cumsum(1)")
    )
    assert jaccard(a, b) == 1.0
    assert near_pairs([a, b, c]) == [(0, 1)]


def test_hashing_finds_what_comparing_all_pairs_finds() -> None:
    pytest.importorskip("datasketch")
    draw = random.Random(0)
    sets = [frozenset(draw.sample(range(10**6), 60)) for _ in range(EXACT_UP_TO)]
    copies = [frozenset([*list(sets[i])[1:], 10**7 + i]) for i in range(40)]
    found = near_pairs([*sets, *copies], threshold=0.9)
    truth = {(i, EXACT_UP_TO + i) for i in range(40)}
    assert set(found) <= truth
    assert len(found) >= 36  # J = 59/61: each is missed with a probability of about 1 %


def record(name: str, ops: tuple[str, ...], traced: list[graph.Row], **facts: object) -> TaskRecord:
    """A filtered task."""
    return TaskRecord(
        f"# {name}", ops, "torch#1", facts={"abstract": {"graph": traced, "input_bytes": 1}, **facts}
    )


def test_caps_hold_and_do_not_depend_on_the_order() -> None:
    graphs = [rows(nn.Softmax(-1)), *(rows(*[torch.exp] * n) for n in range(1, 40))]
    records = [record(f"s{i}", ("nn.Softmax",), graphs[1 + i % 39]) for i in range(39)]
    records += [
        record(f"e{i}", ("torch.exp",), graphs[1 + i % 39], compiled={"vendor_share": 0.9}) for i in range(30)
    ]
    records += [record(f"t{i}", ("torch.cumsum",), graphs[1 + i % 39]) for i in range(39)]
    caps = Caps(family=0.5, vendor=0.2, headroom_share=0.0)
    kept, removed = capped(records, caps)
    vendor = sum(r.facts.get("compiled", {}).get("vendor_share", 0) > 0.5 for r in kept)  # type: ignore[attr-defined]
    assert 0 < vendor <= 0.2 * len(kept)
    assert max(Counter(r.ops for r in kept).values()) <= 0.5 * len(kept)
    assert removed["vendor-bound"] == 30 - vendor
    shuffled = random.Random(1).sample(records, len(records))
    assert {r.id for r in capped(shuffled, caps)[0]} == {r.id for r in kept}


def test_a_cluster_gives_few_tasks() -> None:
    records = [record(str(i), ("torch.exp",), rows(torch.exp, shape=(2, i + 1))) for i in range(9)]
    assert len(capped(records, Caps(family=1.0, per_cluster=3))[0]) == 3


def test_clusters_do_not_cross_the_split_and_some_operators_are_held_out() -> None:
    splits = [
        split_of(record(str(n), ("torch.exp",), rows(*[torch.exp] * n, shape=(2, n + 1))))
        for n in range(1, 60)
    ]
    again = [split_of(record(f"x{n}", ("torch.exp",), rows(*[torch.exp] * n))) for n in range(1, 60)]
    assert splits == again
    assert {Split.TRAIN, Split.TEST} == set(splits)
    held_out = record("g", ("nn.Conv2d", "nn.GroupNorm"), rows(nn.GroupNorm(2, 4)))
    assert split_of(held_out) is Split.HELD_OUT


def test_tiers() -> None:
    eager, compiled = {"median_us": 2e3}, {"vendor_share": 0.0, "graph_breaks": 0}
    easy = record("a", ("torch.exp",), rows(torch.exp), eager=eager, compiled=compiled)
    assert str(tier_of(easy)) == "starter"
    assert (
        str(
            tier_of(record("b", ("torch.exp",), rows(torch.exp), eager={"median_us": 9e3}, compiled=compiled))
        )
        == "main"
    )
    assert (
        str(tier_of(record("c", ("torch.fft.fft",), rows(torch.fft.fft), eager=eager, compiled=compiled)))
        == "hard"
    )
    assert rows_of(easy)
