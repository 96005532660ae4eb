"""The error budget on honest float32 arithmetic (passes, derived inputs included) and on TF32 (does not)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cuda_agent.config import Track
from cuda_agent.judge.compare import compare_leaf
from cuda_agent.judge.probes import derive, probe_names

f32 = np.float32


def serial_sum(x):
    """One accumulator, left to right, in float32."""
    return np.add.accumulate(x, axis=-1, dtype=f32)[..., -1:]


def fast_exp(x):
    """exp through exp2 of a rounded product, as GPUs do it."""
    return np.exp2((x * f32(np.log2(np.e))).astype(f32)).astype(f32)


def softmax(x):
    e = fast_exp((x - x.max(-1, keepdims=True)).astype(f32))
    return e / serial_sum(e)


def log_softmax(x):
    d = (x - x.max(-1, keepdims=True)).astype(f32)
    return d - np.log(serial_sum(fast_exp(d)))


def layer_norm(x):
    n = f32(x.shape[-1])
    d = (x - serial_sum(x) / n).astype(f32)
    return d / np.sqrt(serial_sum((d * d).astype(f32)) / n + f32(1e-5))


def rms_norm(x):
    return x / np.sqrt(serial_sum((x * x).astype(f32)) / f32(x.shape[-1]) + f32(1e-6))


def tanh(x):
    return f32(1) - f32(2) / (fast_exp(f32(2) * x) + f32(1))


def gelu(x):
    return f32(0.5) * x * (f32(1) + tanh((f32(0.7978845608) * (x + f32(0.044715) * x * x * x)).astype(f32)))


HONEST = {
    "softmax": (softmax, lambda x: F.softmax(x, -1)),
    "log_softmax": (log_softmax, lambda x: F.log_softmax(x, -1)),
    "layer_norm": (layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": (rms_norm, lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
    "silu": (lambda x: x / (f32(1) + fast_exp(-x)), F.silu),
    "tanh": (tanh, torch.tanh),
    "gelu": (gelu, lambda x: F.gelu(x, approximate="tanh")),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(fast_exp(-np.abs(x))), F.softplus),
    "exp": (fast_exp, torch.exp),
    "mean": (lambda x: serial_sum(x)[..., 0] / f32(x.shape[-1]), lambda x: x.mean(-1)),
}


def judged(candidate, reference, x):
    expected = reference(x)
    with np.errstate(all="ignore"):
        actual = torch.from_numpy(np.ascontiguousarray(candidate(x.numpy()), dtype=f32))
    return compare_leaf(actual, expected, reference(x.double()), track=Track.MATCHED, name="output")


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_pass_every_probe(name, draw):
    for seed in range(3):
        gen = torch.Generator().manual_seed(seed)
        x = draw(8, 1000, generator=gen)
        inputs = [x, *(derive([x], probe, gen)[0] for probe in probe_names())]
        for each in inputs:
            report = judged(*HONEST[name], each)
            assert report.ok, report.detail


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_serial_sums_of_8192_terms_pass(rows):
    """Few outputs make eager's own error a poor estimate: hence the wider floor below 64 elements."""
    for seed in range(60):
        x = torch.rand(rows, 8192, generator=torch.Generator().manual_seed(seed))
        report = judged(lambda v: serial_sum(v)[..., 0], lambda v: v.sum(-1), x)
        assert report.ok, report.detail


def tf32(x):
    """Rounded to 10 mantissa bits."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def tf32_report(a, b):
    return compare_leaf(tf32(a) @ tf32(b), a @ b, a.double() @ b.double(), track=Track.MATCHED, name="output")


@pytest.mark.parametrize("size", [64, 1024, 8192])
def test_tf32_fails(size):
    gen = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, size, generator=gen), torch.randn(size, 64, generator=gen)
    assert not tf32_report(a, b).ok
    assert not tf32_report(a[:1], b[:, :8]).ok  # few outputs too


def test_tf32_on_uniform_inputs_is_caught_by_the_sign_probe():
    """Errors of one sign average out over 8192 positive terms; with signs they do not."""
    gen = torch.Generator().manual_seed(0)
    a, b = torch.rand(64, 8192, generator=gen), torch.rand(8192, 64, generator=gen)
    assert tf32_report(a, b).ok
    assert not tf32_report(*derive([a, b], "sign_flip", gen)).ok
