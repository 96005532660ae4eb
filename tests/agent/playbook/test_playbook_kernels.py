"""Generated kernels against eager and float64: built by the real compiler, run for real."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from playbook_modules import MODULES, captured, kernels, prepare, worst_excess, write

from cuda_agent.agent.playbook.candidate import make_candidate, variants

FAST = [
    "fused_chain", "softmax_odd", "layer_norm_gelu", "linear_silu", "two_outputs", "buffer", "float16",
    "float16_linear", "broadcasting", "views", "over_dim_1", "several_shapes", "in_place", "arguments",
]  # fmt: skip


def check(name: str, device: str, folder: Path) -> None:
    prepared = prepare(MODULES[name], device, folder)
    for case in range(len(prepared.candidate.cases)):
        for change in ("", "scaled", "flipped"):
            assert worst_excess(prepared, case, change) <= 1


@pytest.mark.parametrize("name", FAST)
def test_cpu_kernels_are_within_the_error_budget(name: str, tmp_path: Path) -> None:
    check(name, "cpu", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODULES) - set(FAST)))
def test_more_cpu_kernels_are_within_the_error_budget(name: str, tmp_path: Path) -> None:
    check(name, "cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", sorted(MODULES))
def test_cuda_kernels_are_within_the_error_budget(name: str, tmp_path: Path) -> None:
    check(name, "cuda", tmp_path)


def test_every_configuration_gives_the_same_answer(tmp_path: Path) -> None:
    prepared = prepare(MODULES["log_softmax"], "cpu", tmp_path)
    inputs = prepared.inputs(0)
    first = prepared.new(*inputs)
    import candidate  # the model_new.py just loaded

    tried = list(variants(prepared.candidate))
    assert tried
    for case, step, value in tried:
        candidate.CONFIG[case][step] = value
        torch.testing.assert_close(prepared.new(*inputs), first, rtol=1e-5, atol=1e-6)


def test_non_contiguous_arguments_are_packed(tmp_path: Path) -> None:
    prepared = prepare(MODULES["softmax_odd"], "cpu", tmp_path)
    x = torch.randn(1001, 77).t()
    torch.testing.assert_close(prepared.new(x), torch.softmax(x, -1))


def test_an_argument_that_is_no_tensor_is_part_of_what_was_made(tmp_path: Path) -> None:
    prepared = prepare(MODULES["several_shapes"], "cpu", tmp_path)
    [x] = prepared.inputs(0)
    torch.testing.assert_close(prepared.new(x, 1.5), prepared.reference(x))
    with pytest.raises(ValueError, match="shapes or dtypes"):
        prepared.new(x, scale=2.0)


def test_infinities_and_nan_come_out_as_eager_gives_them(tmp_path: Path) -> None:
    prepared = prepare(MODULES["softmax_odd"], "cpu", tmp_path)
    x = torch.randn(77, 1001)
    x[0, 5], x[1, 0], x[2, 7] = float("nan"), float("inf"), float("-inf")
    x[3] = float("-inf")
    torch.testing.assert_close(prepared.new(x), torch.softmax(x, -1), equal_nan=True)


def test_other_shapes_are_refused_in_one_line(tmp_path: Path) -> None:
    prepared = prepare(MODULES["softmax_odd"], "cpu", tmp_path)
    with pytest.raises(ValueError, match="shapes or dtypes"):
        prepared.new(torch.randn(3, 5))
    with pytest.raises(ValueError, match="shapes or dtypes"):
        prepared.new(torch.randn(77, 1001).double())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(
    "name",
    [
        "fused_chain",
        "softmax_8189",
        "over_dim_1",
        "float16_odd",
        "full_reductions",
        "norms",
        "two_inputs_odd",
    ],
)
def test_cuda_sources_compile_without_spills(name: str, tmp_path: Path) -> None:
    candidate = make_candidate(captured(MODULES[name], tmp_path), MODULES[name], kernels("cuda"))
    write(candidate, tmp_path)
    argv = ["nvcc", "-arch=sm_90", "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
    argv += ["-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"]
    argv += ["-c", candidate.kernel_file(), "-o", "fused.o"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    assert spills and max(spills) <= 16, "asking for more blocks than registers allow costs memory traffic"
