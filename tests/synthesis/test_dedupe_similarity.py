"""The measure of the paper's decontamination against brute force and by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from cuda_agent.synthesis.dedupe.similarity import assign, source_similarity

RELU = """
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


def brute_force(values: list[list[float]]) -> float:
    """Largest sum over all one-to-one assignments."""
    if len(values) > len(values[0]):
        values = [list(column) for column in zip(*values, strict=True)]
    columns = range(len(values[0]))
    return max(
        sum(row[column] for row, column in zip(values, chosen, strict=True))
        for chosen in itertools.permutations(columns, len(values))
    )


@pytest.mark.parametrize("seed", range(30))
def test_assignment_is_the_best_one(seed: int) -> None:
    draw = random.Random(seed)
    rows, columns = draw.randint(1, 5), draw.randint(1, 5)
    values = [[float(draw.randint(0, 9)) for _ in range(columns)] for _ in range(rows)]
    pairs = assign(values)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs) == min(rows, columns)
    assert sum(values[i][j] for i, j in pairs) == brute_force(values)


def test_names_do_not_count_and_structure_does() -> None:
    assert source_similarity(RELU, RELU) == 1.0
    assert source_similarity(RELU, RELU.replace("relu", "gelu").replace("x", "value")) == 1.0
    longer = RELU.replace("return", "x = x + 1\n        return")
    assert 0.0 < source_similarity(RELU, longer) < 0.9
    assert source_similarity(RELU, longer) == pytest.approx(source_similarity(longer, RELU))


def test_a_source_without_a_model_is_like_nothing() -> None:
    assert source_similarity(RELU, "x = (") == 0.0
    assert source_similarity(RELU, "class Other: pass") == 0.0
