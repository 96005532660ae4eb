"""Trivial answers as tensors, and their errors: the judge's comparison decides the same."""

from __future__ import annotations

import math

import pytest
import torch

from cuda_agent.config import Track
from cuda_agent.judge.compare import compare_leaf
from cuda_agent.judge.trivial import Contract, mean_like, unit_error, views_like, zeros_like

GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64, torch.int32])
@pytest.mark.parametrize("track", Track)
@pytest.mark.parametrize("size", [0.0, 1e-8, 3e-7, 1e-5, 4e-3, 0.1])
def test_a_contract_passes_what_the_judge_passes(dtype: torch.dtype, track: Track, size: float) -> None:
    truth64 = (rand(33, 17) * 100).to(torch.complex128 if dtype.is_complex else torch.float64)
    expected = truth64.to(dtype)
    wide = truth64 if expected.is_floating_point() or expected.is_complex() else None
    answer = (truth64 * (1 + size)).to(dtype)
    report = compare_leaf(answer, expected, wide, track=track, name="")
    ratio = Contract(expected, wide, track, finite=True).ratio(answer)
    assert (ratio <= 1) is report.ok


@pytest.mark.parametrize("with64", [True, False])
def test_infinities_are_held_as_the_judge_holds_them(with64: bool) -> None:
    expected = rand(8, 8)
    expected[2, 3] = math.inf
    wide = expected.double() if with64 else None
    contract = Contract(expected, wide, Track.MATCHED, finite=False)
    assert contract.ratio(expected.clone()) == 0
    assert contract.ratio(torch.zeros(8, 8)) == math.inf
    finite = Contract(rand(8, 8), None, Track.MATCHED, finite=True)
    assert finite.ratio(expected) == math.inf
    assert finite.ratio(rand(8, 7)) == math.inf
    assert finite.ratio(rand(8, 8).double()) == math.inf


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
@pytest.mark.parametrize("shape", [(), (7,), (3, 200_000), (1, 2, 400_000)])
def test_unit_error_is_allclose(tolerance: float, shape: tuple[int, ...]) -> None:
    expected = rand(*shape) * 4 - 2
    for factor in (0.9, 1.1):
        answer = expected + factor * tolerance * (1 + expected.abs())
        passes = torch.allclose(answer, expected, atol=tolerance, rtol=tolerance)
        assert (unit_error(answer, expected) <= tolerance) is passes is (factor < 1)


def test_unit_error_of_infinities() -> None:
    same = torch.tensor([1.0, math.inf, math.nan])
    assert unit_error(same, same.clone()) == 0
    assert unit_error(torch.zeros(3), same) == math.inf
    assert unit_error(same, torch.zeros(3)) == math.inf


def test_constants() -> None:
    earlier = torch.tensor([[1.0, 3.0], [math.inf, 5.0]])
    constant = mean_like(earlier, torch.empty(4, 5))
    assert constant.shape == (4, 5) and bool((constant == 3.0).all())
    assert constant.untyped_storage().nbytes() == 4
    assert mean_like(torch.tensor([1, 2, 4]), torch.zeros(2, dtype=torch.int64)).tolist() == [2, 2]
    assert mean_like(torch.tensor([True, True, False]), torch.zeros(1, dtype=torch.bool)).tolist() == [True]
    assert mean_like(torch.tensor([1 + 1j, 3 - 1j]), torch.zeros(1, dtype=torch.complex64)).tolist() == [2]
    assert zeros_like(torch.ones(3, 2, dtype=torch.int8)).sum() == 0


def test_ways_to_return_an_input() -> None:
    x = rand(3, 4)

    def names(*shape: int) -> set[str]:
        return set(views_like([x], torch.empty(shape)))

    assert names(3, 4) == {"input 0"}
    assert names(12) == {"input 0 reshaped"}
    assert names(4, 3) == {"input 0 reshaped", "input 0 transposed"}
    assert names(2, 3, 4) == {"input 0 broadcast"}
    assert names(3, 4, 2) == {"input 0 broadcast from the left"}
    assert names(5) == set()
    assert views_like([x], torch.empty(3, 4, dtype=torch.float16))["input 0"].dtype == torch.float16
    assert views_like([rand(1)], torch.empty(3, 4)).keys() == {"input 0 broadcast"}
    assert views_like([x.to(torch.complex64)], torch.empty(3, 4)) == {}
