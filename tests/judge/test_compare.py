"""Comparison of outputs: values worked by hand, and honest arithmetic against dishonest."""

from __future__ import annotations

import math

import pytest
import torch

from cuda_agent.config import Track
from cuda_agent.judge import compare
from cuda_agent.judge.compare import Budget, compare_leaf, error_budget, fallback_budget, scaled_error

U32 = 2.0**-24


def matched(actual, expected, expected64=None, **options):
    return compare_leaf(actual, expected, expected64, track=Track.MATCHED, name="output", **options)


def paper(actual, expected):
    return compare_leaf(actual, expected, None, track=Track.PAPER, name="output")


def test_scaled_error_by_hand():
    # rms([3, 4, 0, 0]) = sqrt(25 / 4) = 2.5; errors: 0.55/5.5, 0, 0.25/2.5, 0
    y64 = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    y = torch.tensor([3.55, 4.0, 0.25, 0.0], dtype=torch.float64)
    largest, rms = scaled_error(y, y64)
    assert largest == pytest.approx(0.1)
    assert rms == pytest.approx(math.sqrt((0.01 + 0.01) / 4))


def test_scaled_error_of_nothing_and_of_zeros():
    assert scaled_error(torch.zeros(0, 3), torch.zeros(0, 3)) == (0.0, 0.0)
    assert scaled_error(torch.zeros(4), torch.zeros(4)) == (0.0, 0.0)
    assert scaled_error(torch.tensor([0.0, 1e-30]), torch.zeros(2))[0] == math.inf


def test_scaled_error_with_non_finite_elements():
    inf, nan = math.inf, math.nan
    reference = torch.tensor([inf, -inf, nan, 1.0])
    assert scaled_error(reference.clone(), reference) == (0.0, 0.0)
    for place, value in ((0, -inf), (0, 5.0), (2, 1.0), (3, nan), (3, inf)):
        wrong = reference.clone()
        wrong[place] = value
        assert scaled_error(wrong, reference)[0] == inf
    # the infinities take no part in the rms: rms = 1, so e = 0.5 / 2
    y = torch.tensor([inf, -inf, nan, 1.5])
    assert scaled_error(y, reference)[0] == 0.25


def test_scaled_error_refuses_other_shapes():
    with pytest.raises(ValueError, match="shapes differ"):
        scaled_error(torch.zeros(3), torch.zeros(3, 1))


def test_scaled_error_does_not_overflow():
    huge = torch.full((4,), 1e200, dtype=torch.float64)
    assert scaled_error(huge * 1.5, huge)[0] == pytest.approx(0.25)


@pytest.mark.parametrize("shape", [(7, 11, 13), (1001,), (1, 1, 1001), (2, 500)])
def test_pieces_do_not_change_the_result(monkeypatch, shape):
    gen = torch.Generator().manual_seed(0)
    y64 = torch.randn(shape, dtype=torch.float64, generator=gen)
    y = y64 + 1e-3 * torch.randn(shape, dtype=torch.float64, generator=gen)
    whole = scaled_error(y, y64)
    monkeypatch.setattr(compare, "_piece_size", lambda device: 64)
    assert scaled_error(y, y64) == pytest.approx(whole, rel=1e-12)
    strided = y.transpose(0, -1).contiguous().transpose(0, -1)
    assert scaled_error(strided, y64) == pytest.approx(whole, rel=1e-12)


def test_wrong_index_is_right_across_pieces(monkeypatch):
    monkeypatch.setattr(compare, "_piece_size", lambda device: 10)
    expected = torch.arange(60).reshape(5, 12)
    actual = expected.clone()
    actual[3, 11] = -1
    report = matched(actual, expected)
    assert not report.ok
    assert report.detail == "output: 1 of 60 elements wrong; [3, 11] got -1, expected 47"


def test_budget_by_hand():
    assert error_budget((0.0, 0.0), torch.float32) == Budget(32 * U32, 32 * U32)
    assert error_budget((1e-3, 1e-6), torch.float32) == Budget(64e-3, pytest.approx(64e-6))
    assert error_budget((0.0, 1.0), torch.float16) == Budget(4 * 2.0**-11, 3.0)
    assert error_budget((0.0, 0.0), torch.bfloat16) == Budget(4 * 2.0**-8, 4 * 2.0**-8)
    assert error_budget((0.0, 0.0), torch.float64).max == 8192 * 2.0**-53
    few = error_budget((0.0, 1e-3), torch.float32, num_elements=63)
    assert few == Budget(128 * U32, 64e-3)
    assert error_budget((0.0, 1e-3), torch.float32, num_elements=64).max == 32 * U32
    assert error_budget((0.0, 0.0), torch.float16, num_elements=1).max == 4 * 2.0**-11


def test_shape_and_dtype_are_strict():
    assert "shape [1], expected []" in matched(torch.zeros(1), torch.zeros(())).detail
    assert "dtype float64, expected float32" in matched(torch.zeros(2).double(), torch.zeros(2)).detail
    assert not paper(torch.zeros(3, 1), torch.zeros(3)).ok


def test_integers_and_bools_exactly():
    assert matched(torch.tensor([1, 2]), torch.tensor([1, 2])).ok
    assert not paper(torch.tensor([1, 3]), torch.tensor([1, 2])).ok
    assert not matched(torch.tensor([True]), torch.tensor([False])).ok


def test_paper_tolerance_edges():
    expected = torch.tensor([0.0, 100.0])
    assert paper(torch.tensor([0.0099, 101.0]), expected).ok
    report = paper(torch.tensor([0.0101, 101.02]), expected)
    assert not report.ok
    assert report.detail.startswith(
        "output: 2 of 2 elements wrong; [0] got 0.0101, expected 0; [1] got 101.02"
    )
    assert report.max_abs == pytest.approx(1.02, rel=1e-4)


@pytest.mark.parametrize("track", list(Track))
def test_non_finite_where_reference_is_finite(track):
    expected = torch.tensor([1.0, 2.0, 3.0])
    actual = torch.tensor([math.nan, 2.0, -math.inf])
    report = compare_leaf(actual, expected, expected.double(), track=track, name="out[1]")
    assert not report.ok
    assert "out[1]: 1 NaN and 1 Inf where the reference is finite" in report.detail


@pytest.mark.parametrize("track", list(Track))
def test_reference_mask_must_match(track):
    expected = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    same = compare_leaf(expected.clone(), expected, expected.double(), track=track, name="o")
    assert same.ok, same.detail
    for place, value in ((0, 0.0), (1, -math.inf), (2, 7.0), (1, math.nan)):
        wrong = expected.clone()
        wrong[place] = value
        report = compare_leaf(wrong, expected, expected.double(), track=track, name="o")
        assert not report.ok
        assert "1 elements differ where the reference is NaN or Inf" in report.detail


def test_half_overflow_matches_eager_not_float64():
    expected = torch.tensor([math.inf, 2.0], dtype=torch.float16)
    report = matched(expected.clone(), expected, torch.tensor([70000.0, 2.0], dtype=torch.float64))
    assert report.ok, report.detail


def test_float64_run_that_is_not_finite_falls_back_to_eager():
    expected = torch.tensor([1.0, 2.0])
    report = matched(expected.clone(), expected, torch.tensor([math.nan, 2.0], dtype=torch.float64))
    assert report.ok
    assert report.budget == fallback_budget(torch.float32)
    assert "its float64 run is not finite" in report.detail


def test_complex_is_compared_as_pairs():
    expected = torch.tensor([1 + 1j, 2 - 1j])
    assert matched(expected.clone(), expected, expected.to(torch.complex128)).ok
    report = matched(expected.conj().resolve_conj(), expected, expected.to(torch.complex128))
    assert not report.ok
    assert "[0, 1] got -1, expected 1" in report.detail
    assert matched(expected.clone(), expected, torch.conj(expected.conj().resolve_conj())).ok


def test_zeros_fail_a_small_output():
    # below atol, so the paper's tolerance lets zeros pass; the budget does not
    expected = 1e-3 * torch.randn(64, generator=torch.Generator().manual_seed(1))
    assert paper(torch.zeros(64), expected).ok
    assert not matched(torch.zeros(64), expected, expected.double()).ok


def test_rms_alone_can_fail():
    expected = torch.ones(1000)
    expected64 = expected.double()
    expected64[0] += 1e-3  # eager is far off in one element, so the maximum allowed is large
    actual = expected + 5e-3
    report = matched(actual, expected, expected64)
    assert not report.ok
    assert report.scaled[0] < report.budget.max
    assert "rms of scaled error" in report.detail


def test_widen_is_a_factor_on_the_budget():
    expected = torch.ones(64)
    actual = expected + 80 * U32  # e = 40 u: over 32 u, under 64 u
    assert not matched(actual, expected, expected.double()).ok
    assert matched(actual, expected, expected.double(), widen=2.0).ok


def _serial_matmul(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_serial_sums_pass_and_tf32_does_not(draw):
    gen = torch.Generator().manual_seed(3)
    a, b = draw(32, 8192, generator=gen), draw(8192, 32, generator=gen)
    eager, y64 = a @ b, a.double() @ b.double()
    report = matched(_serial_matmul(a, b), eager, y64)
    assert report.ok, report.detail

    def tf32(x):  # round to 10 mantissa bits
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    if draw is torch.randn:  # in rand the rounding errors average out: the kernel list shows that case
        assert not matched(tf32(a) @ tf32(b), eager, y64).ok
        assert not matched(tf32(a) @ tf32(b), eager).ok


def test_half_kernels_with_float32_inside_pass():
    gen = torch.Generator().manual_seed(4)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(64, 512, generator=gen).to(dtype)
        eager = torch.nn.functional.gelu(torch.softmax(x, -1) * 3 + x)
        wide = torch.nn.functional.gelu(torch.softmax(x.float(), -1) * 3 + x.float()).to(dtype)
        y64 = torch.nn.functional.gelu(torch.softmax(x.double(), -1) * 3 + x.double())
        report = matched(wide, eager, y64)
        assert report.ok, report.detail


def test_zero_dimensional_and_empty_outputs():
    assert matched(torch.tensor(2.0), torch.tensor(2.0), torch.tensor(2.0).double()).ok
    report = matched(torch.tensor(2.5), torch.tensor(2.0), torch.tensor(2.0).double())
    assert "[] got 2.5, expected 2" in report.detail
    assert matched(torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0, 4).double()).ok


def test_eight_bit_floats():
    expected = torch.tensor([1.0, 2.0, math.nan]).to(torch.float8_e4m3fn)
    assert matched(expected.clone(), expected, expected.double()).ok
    assert not matched(
        torch.tensor([1.0, 3.0, math.nan]).to(torch.float8_e4m3fn), expected, expected.double()
    ).ok
    assert not matched(torch.tensor([1.0, 2.0, 0.0]).to(torch.float8_e4m3fn), expected, expected.double()).ok
