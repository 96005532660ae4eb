"""Where an output is wrong, in words and as a map."""

import pytest
import torch

from cuda_agent.errors import WorkspaceError
from cuda_agent.inspection.error_map import failure_lines, output_lines, wrong_elements


def text(expected, actual):
    return "\n".join(output_lines(expected, actual, 1e-2))


def test_first_wrong_elements_and_their_pattern():
    expected = torch.zeros(64, 100)
    actual = expected.clone()
    actual[10:20, 96:] = 5.0
    found = text(expected, actual)
    assert "40 of 6400 elements are wrong (0.6%)" in found
    assert "[10, 96] expected 0, got 5" in found
    assert "only columns 96-99 of 100" in found
    assert "only rows 10-19 of 64" in found
    rows = [line for line in found.splitlines() if set(line.strip()) <= set(".:+*#")]
    assert len(rows) == 16
    assert all(row.strip()[0] == "." for row in rows)
    assert rows[3].strip()[-1] != "."
    assert rows[10].strip() == "." * 48


def test_a_stride_in_the_columns_is_named():
    expected = torch.zeros(4, 64)
    actual = expected.clone()
    actual[:, 1::2] = 1.0
    assert "columns 1-63 in steps of 2" in text(expected, actual)


def test_all_wrong_is_all_dark():
    assert "#" * 8 in text(torch.zeros(8, 8), torch.ones(8, 8))


def test_nan_and_infinity_are_wrong_where_not_expected():
    expected = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    actual = torch.tensor([float("nan"), float("nan"), float("inf"), float("-inf")])
    wrong, _ = wrong_elements(expected, actual, 1e-2)
    assert wrong.tolist() == [True, False, False, True]


def test_integers_are_exact_and_scalars_have_a_map():
    assert "1 of 3 elements" in text(torch.tensor([100, 200, 300]), torch.tensor([100, 201, 300]))
    assert "1 of 1 elements" in text(torch.tensor(1.0), torch.tensor(2.0))


def test_small_errors_are_shown_by_size():
    found = text(torch.ones(4), torch.tensor([1.0, 1.0 + 1e-4, 1.0, 1.0]))
    assert "no element is off by more than 0.01 * (1 + |expected|);" in found
    assert found.splitlines()[1].strip().startswith("[1] expected 1")


def test_another_shape_or_dtype_is_the_message():
    assert text(torch.ones(4), torch.ones(5)) == "expected float32[4], got float32[5]"
    assert text(torch.ones(4), torch.ones(4).half()) == "expected float32[4], got float16[4]"


def test_a_saved_failure_is_read_without_running_code(tmp_path):
    path = tmp_path / "failure.pt"
    torch.save(
        {
            "check": "check 2/5",
            "inputs": [torch.ones(2, 3)],
            "expected": [torch.zeros(2)],
            "actual": [torch.ones(2)],
        },
        path,
    )
    found = "\n".join(failure_lines(path))
    assert "check 2/5" in found and "float32[2,3]" in found and "2 of 2 elements" in found
    torch.save({"check": print}, path)
    with pytest.raises(WorkspaceError, match="cannot read"):
        failure_lines(path)
    with pytest.raises(WorkspaceError):
        failure_lines(tmp_path / "none")
