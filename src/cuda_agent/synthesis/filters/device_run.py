"""Measurements on the target device at the shipped sizes: eager and compiled times, agreement, memory."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuda_agent.config import Track
from cuda_agent.judge.compare import compare_leaf
from cuda_agent.judge.exchange import leaves
from cuda_agent.judge.promote import run_in_float64
from cuda_agent.judge.timing import make_timer, time_calls
from cuda_agent.judge.worker import Refused
from cuda_agent.synthesis.filters.loaded import Loaded
from cuda_agent.synthesis.words import words

_FLOAT64_MAX_ELEMENTS = 1 << 26
_VENDOR_OPS = words(
    """
    mm addmm bmm baddbmm addbmm mv addmv dot convolution _convolution mkldnn_convolution
    cudnn_convolution convolution_overrideable miopen_convolution mkldnn_linear
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
    _thnn_fused_lstm_cell mkldnn_rnn_layer _cudnn_rnn _fft_c2c _fft_r2c _fft_c2r linalg_qr _linalg_svd
    _linalg_eigh linalg_inv_ex linalg_cholesky_ex linalg_lu_factor_ex _linalg_solve_ex triangular_solve
    linalg_solve_triangular cholesky_inverse _linalg_det native_batch_norm cudnn_batch_norm
    _cdist_forward
    """
)
"""Operators that are one call into a vendor's library (BLAS, cuDNN, oneDNN, FFT, LAPACK)."""


def eager_time(task: Loaded, *, num_samples: int, limit_us: float) -> dict[str, Any]:
    """Eager time by the judge's timer, and the peak of memory where the device counts it.

    Args:
        task: loaded on the target device.
        num_samples: calls timed, over two draws in turn.
        limit_us: a first call that takes longer than this many microseconds is the only one.
    """
    model, sets = task.model(), [task.draw(1), task.draw(2)]
    on_gpu = task.device != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        start = time.perf_counter()
        model(*sets[0])
        _wait(task.device)
        first_us = (time.perf_counter() - start) * 1e6
        peak = int(torch.cuda.max_memory_allocated()) if on_gpu else None
        if first_us > 20 * limit_us:
            return {"eager_us": [first_us], "peak_bytes": peak}
        samples = _samples(task.device, lambda index: model(*sets[index]), num_samples)
    return {"eager_us": samples, "peak_bytes": peak}


def _samples(device: str, call: Callable[[int], Any], num_samples: int) -> list[float]:
    order = [index % 2 for index in range(num_samples)]
    samples, _ = time_calls(make_timer(device), call, order=order, warmup=2, keep_last=1)
    return [round(sample, 3) for sample in samples]


def compiled(task: Loaded, *, backend: str) -> dict[str, Any]:
    """torch.compile: does it run, and does it agree with eager under the judge's comparison.

    The compiled module stays with the task for :func:`compile_time`.

    Args:
        task: loaded on the target device.
        backend: of ``torch.compile``: ``inductor``; ``aot_eager`` captures and decomposes, and generates no
            code.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, inputs = task.model(), task.draw(1)
    start = time.perf_counter()
    try:
        with torch.no_grad():
            other = torch.compile(model, dynamic=False, backend=backend)
            outputs = list(leaves(other(*copy.deepcopy(inputs))))
            _wait(task.device)
    except (Refused, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  a compiler may fail in any way
        return {"agrees": False, "why": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    seconds = time.perf_counter() - start
    agrees, why = _agreement(task, inputs, outputs)
    task.compiled = other
    return {
        "agrees": agrees,
        "why": why,
        "backend": backend,
        "seconds": round(seconds, 3),
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }


def compile_time(task: Loaded, *, num_samples: int) -> dict[str, Any]:
    """Time of the module that :func:`compiled` left, by the judge's timer."""
    sets = [task.draw(1), task.draw(2)]
    with torch.no_grad():
        return {"compile_us": _samples(task.device, lambda index: task.compiled(*sets[index]), num_samples)}


def _agreement(task: Loaded, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> tuple[bool, str]:
    expected = task.run(inputs)
    wide: list[Any] = [None] * len(expected)
    if sum(leaf.numel() for leaf in expected) <= _FLOAT64_MAX_ELEMENTS:
        try:
            with torch.no_grad():
                wide = list(leaves(run_in_float64(task.model(), inputs)))
        except Exception:  # noqa: BLE001  a task may refuse float64 in any way
            wide = [None] * len(expected)
    if len(outputs) != len(expected):
        return False, "another number of outputs"
    for index, (a, e, e64) in enumerate(zip(outputs, expected, wide, strict=True)):
        report = compare_leaf(a, e, e64, track=Track.MATCHED, name=f"output {index}")
        if not report.ok:
            return False, report.detail[:200]
    return True, ""


def vendor_share(task: Loaded) -> float:
    """Share of the operators' own time that is spent in a vendor's library, 0 to 1."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = task.device != "cpu"
    inputs = task.draw(1)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        task.model()(*inputs)
        _wait(task.device)
    total = vendor = 0.0
    for event in found.key_averages():
        if not event.key.startswith("aten::"):
            continue
        own = float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        total += own
        vendor += own if event.key.removeprefix("aten::") in _VENDOR_OPS else 0.0
    return round(vendor / total, 4) if total else 0.0


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
