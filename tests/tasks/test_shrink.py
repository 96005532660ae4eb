"""Copies of tasks with their leading sizes cut."""

from __future__ import annotations

import pytest

from cuda_agent.errors import TaskError
from cuda_agent.task import Task
from cuda_agent.tasks.shrink import shrink_batch

MODEL = "import torch\nclass Model(torch.nn.Module): ...\n"


def shrunk(source: str, batch: int = 2) -> tuple[str, dict[str, tuple[int, int]]]:
    result = shrink_batch(Task(code=MODEL + source, name="t"), batch)
    return result.task.code.removeprefix(MODEL), dict(result.sizes)


def test_a_batch_size_is_cut_and_nothing_else_is_touched() -> None:
    source = (
        "batch_size = 64 * 2  # größer\nfeatures = 512\n"
        "def get_inputs():\n    return [torch.rand(batch_size, features)]\n"
        "def get_init_inputs():\n    return [batch_size, features]\n"
    )
    code, sizes = shrunk(source)
    assert code == source.replace("64 * 2", "2")
    assert sizes == {"batch_size": (128, 2)}


def test_a_small_batch_stays() -> None:
    code, sizes = shrunk("batch_size = 2\ndef get_inputs(): return [torch.rand(batch_size, 8)]\n", 4)
    assert "batch_size = 2\n" in code
    assert sizes == {}


def test_rows_of_the_first_input_are_cut_but_no_inner_size() -> None:
    _, sizes = shrunk("M = 1000\nK = 900\ndef get_inputs(): return [torch.rand(M, K), torch.rand(K, 7)]\n")
    assert sizes == {"M": (1000, 2)}


def test_square_sizes_are_only_capped() -> None:
    _, sizes = shrunk("N = 2 ** 15\ndef get_inputs(): return [torch.rand(N, N)]\n")
    assert sizes == {"N": (32768, 4096)}


def test_a_size_of_the_model_stays() -> None:
    inputs = "def get_inputs(): return [torch.randint(0, 9, (n, 4))]\n"
    assert shrunk(f"n = 9000\n{inputs}def get_init_inputs(): return [n]\n")[1] == {}
    assert shrunk(f"n = 9000\n{inputs}")[1] == {"n": (9000, 2)}


def test_bad_arguments() -> None:
    with pytest.raises(TaskError, match="task t"):
        shrink_batch(Task(code="def", name="t"), 2)
    with pytest.raises(ValueError, match="at least 1"):
        shrink_batch(Task(code=MODEL), 0)
