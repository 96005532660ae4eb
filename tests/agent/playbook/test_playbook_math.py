"""Accuracy of the cpu library's vector functions against float64, over all magnitudes."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
import torch

from cuda_agent.agent.playbook import library

LIMITS = {
    "exp": 1.0, "expm1": 1.5, "exp2": 1.5, "log": 1.0, "log1p": 2.0, "log2": 2.0, "tanh": 3.0, "erf": 1.5,
    "sin": 2.0, "cos": 2.0, "sqrt": 0.51, "rsqrt": 1.6, "floor": 0.0, "round": 0.0,
    "atan": 2.5, "asin": 2.5, "acos": 2.5, "sinh": 3.0, "cosh": 3.0, "asinh": 3.0, "acosh": 3.0, "atanh": 3.0,
}  # fmt: skip
PAIRS = {"pow": 1.0, "fmod": 0.0, "remainder": 0.51, "atan2": 3.0}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 88.7228, 88.73, -103.9, -104.1]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("math")
    source = library.select("cpu_math.h", [*LIMITS, *PAIRS, "float16", "bfloat16", "sigmoid"])
    for name in (*LIMITS, "sigmoid"):
        source += f"""extern "C" void t_{name}(const float* x, float* y, int64_t n) {{
  #pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = pb_{name}(x[i]);
}}
"""
    for name, source_type, target_type in (
        ("to_float16", "float", "uint16_t"),
        ("from_float16", "uint16_t", "float"),
        ("to_bfloat16", "float", "uint16_t"),
    ):  # fmt: skip
        source += f"""extern "C" void t_{name}(const {source_type}* x, {target_type}* y, int64_t n) {{
  #pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = pb_{name}(x[i]);
}}
"""
    for name in PAIRS:
        source += f"""extern "C" void t_{name}(const float* a, const float* b, float* y, int64_t n) {{
  #pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = pb_{name}(a[i], b[i]);
}}
"""
    path = folder / "math.cpp"
    path.write_text(source)
    argv = ["g++", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", path.name, "-o", "math.so"]
    subprocess.run(argv, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "math.so"))


def call(functions: ctypes.CDLL, name: str, x: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    y = np.empty(len(x), dtype)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)]
    getattr(functions, f"t_{name}")(*pointers, ctypes.c_int64(len(x)))
    return y


def floats() -> np.ndarray:
    draw = np.random.default_rng(0)
    every = draw.integers(0, 2**32, 400_000, dtype=np.uint32).view(np.float32)
    every[np.isnan(every)] = np.nan
    dense = np.concatenate([draw.uniform(-12, 12, 200_000), draw.uniform(-110, 95, 100_000)])
    parts = (np.array(SPECIAL), every, dense)
    return np.concatenate([part.astype(np.float32) for part in parts])


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_error_in_units_of_the_last_place(name: str, functions: ctypes.CDLL) -> None:
    x = floats()
    if name in ("sin", "cos"):
        x = x[np.abs(x) < 1e9]
    y = call(functions, name, x)
    exact = getattr(torch, name)(torch.from_numpy(x).double())
    rounded = exact.float().numpy()
    finite = np.isfinite(rounded)
    same = (rounded == y) | (np.isnan(rounded) & np.isnan(y))
    assert same[~finite].all()
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.float32(1.2e-38))).astype(np.float64)
    assert (np.abs(y[finite].astype(np.float64) - exact.numpy()[finite]) / unit).max() <= LIMITS[name]


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_error_of_functions_of_two_numbers(name: str, functions: ctypes.CDLL) -> None:
    draw = np.random.default_rng(1)
    special = np.array([*SPECIAL, 2.0, -2.0, 3.0, 0.5, -0.5, 1e9, -16777217.0, 3e38, 1e-38], np.float32)
    left, right = (grid.ravel() for grid in np.meshgrid(special, special))
    every = floats()
    a = np.concatenate([left, every, draw.uniform(-9, 9, 100_000).astype(np.float32), np.abs(every)])
    b = np.concatenate([right, draw.permutation(every), draw.uniform(-9, 9, 100_000).astype(np.float32)])
    b = np.concatenate([b, draw.uniform(-6, 6, len(every)).astype(np.float32)])
    if name in ("fmod", "remainder"):
        within = ~(np.abs(a.astype(np.float64)) > 2.0**149 * np.abs(b.astype(np.float64))) | (b == 0)
        a, b = a[within], b[within]
    y = np.empty(len(a), np.float32)
    pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in (a, b, y)]
    getattr(functions, f"t_{name}")(*pointers, ctypes.c_int64(len(a)))
    function = getattr(torch, name)
    exact = function(torch.from_numpy(a).double(), torch.from_numpy(b).double())
    rounded = exact.float().numpy()
    finite = np.isfinite(rounded)
    same = (rounded == y) | (np.isnan(rounded) & np.isnan(y))
    assert same[~finite].all(), (a[~finite & ~same][:5], b[~finite & ~same][:5], y[~finite & ~same][:5])
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.float32(1.2e-38))).astype(np.float64)
    error = np.abs(y[finite].astype(np.float64) - exact.numpy()[finite]) / unit
    worst = int(error.argmax())
    assert error.max() <= PAIRS[name], (a[finite][worst], b[finite][worst], y[finite][worst])


def test_sigmoid_is_right_where_it_is_not_denormal(functions: ctypes.CDLL) -> None:
    x = floats()
    exact = torch.sigmoid(torch.from_numpy(x).double()).numpy()
    y = call(functions, "sigmoid", x)
    large = exact > 1e-37
    assert (np.abs(y[large] - exact[large]) / exact[large]).max() < 3e-7
    assert (y[exact <= 1e-37] <= 2e-37).all()


def test_half_conversions_are_exact(functions: ctypes.CDLL) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    wide = call(functions, "from_float16", halves)
    np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
    x = floats()
    narrow = call(functions, "to_float16", x, np.uint16).view(np.float16)
    np.testing.assert_array_equal(narrow, torch.from_numpy(x).half().numpy())
    brain = call(functions, "to_bfloat16", x, np.uint16)
    expected = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(brain[~np.isnan(x)], expected[~np.isnan(x)])
