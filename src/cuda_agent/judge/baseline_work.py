"""What a reference moves and computes, and the roofline from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Precision
from cuda_agent.judge.baseline_lines import Work

if TYPE_CHECKING:
    import torch

_PEAK_SIZE = 8192
_PEAK_CALLS = 5
Counts = dict[str, float]


def count_work(model: torch.nn.Module, inputs: Sequence[Any]) -> Counts:
    """Bytes and floating-point operations of one call.

    Bytes are those of inputs, parameters, buffers and outputs, each counted once: what a kernel that reads
    all of them cannot avoid. Operations are those of matrix products, attention, convolutions and recurrent
    layers as eager does them; algebra may need fewer.

    Returns:
        ``num_bytes``, ``matmul_flops``, ``conv_flops`` (all of cuDNN's kinds, recurrent layers too).
    """
    from torch.utils.flop_counter import FlopCounterMode

    from cuda_agent.judge.floor import tensor_bytes

    with FlopCounterMode(display=False, custom_mapping=_recurrent()) as counter:
        outputs = model(*inputs)
    flops = {str(op): float(num) for op, num in counter.get_flop_counts().get("Global", {}).items()}
    conv = sum(num for op, num in flops.items() if "conv" in op or "rnn" in op)
    return {
        "num_bytes": float(tensor_bytes([list(inputs), dict(model.state_dict()), outputs])),
        "matmul_flops": sum(flops.values()) - conv,
        "conv_flops": float(conv),
    }


def _recurrent() -> dict[Any, Any]:
    """Counters of the recurrent operators that PyTorch's own leaves out, by operator."""
    import torch

    def cudnn(x: torch.Tensor, weights: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
        return _recurrent_flops(x, weights)

    def mkldnn(x: torch.Tensor, *rest: Any, **_: Any) -> int:
        return _recurrent_flops(x, [item for item in rest[:4] if isinstance(item, torch.Tensor)])

    counters: dict[Any, Any] = {torch.ops.aten._cudnn_rnn: cudnn, torch.ops.aten.mkldnn_rnn_layer: mkldnn}
    for counter in counters.values():
        counter._get_raw = True  # tensors, not shapes
    return counters


def _recurrent_flops(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Every weight matrix is applied once for each step of each sequence: ``x`` is (*steps, features)."""
    steps = x.numel() // x.shape[-1]
    return int(2 * steps * sum(weight.numel() for weight in weights if weight.dim() == 2))


def tf32_peak(device: str) -> float:
    """Measured rate of a large matrix product in TF32, FLOP per second (CUDA)."""
    import torch

    from cuda_agent.judge.baseline_forms import allow_tf32
    from cuda_agent.judge.timing import make_timer, time_calls

    a = torch.randn(_PEAK_SIZE, _PEAK_SIZE, device=device)
    with allow_tf32():
        samples, _ = time_calls(
            make_timer(device), lambda _: a @ a, order=[0] * _PEAK_CALLS, warmup=2, keep_last=1
        )
    return 2.0 * _PEAK_SIZE**3 / (min(samples) * 1e-6)


def roofline(
    counts: Sequence[Counts],
    weights: Sequence[float],
    *,
    facts: DeviceFacts,
    precision: Precision,
    tf32_flops: float | None,
) -> Work | None:
    """Work and floor of a call over all cases by weight.

    Args:
        counts: from :func:`count_work`, a case each.
        weights: of the cases.
        facts: measured peaks of the device.
        precision: says which peak holds: by default convolutions may use TF32, matrix products not.
        tf32_flops: TF32 peak, FLOP per second; ``None`` where there is none.

    Returns:
        ``None`` where the device's peaks are not known.
    """
    if facts.read_bandwidth is None or facts.peak_fp32_flops is None:
        return None
    tf32 = tf32_flops or facts.peak_fp32_flops
    conv_peak = facts.peak_fp32_flops if precision is Precision.FP32 else tf32
    matmul_peak = tf32 if precision is Precision.TF32 else facts.peak_fp32_flops
    rows = []
    for count, weight in zip(counts, weights, strict=True):
        moving = count["num_bytes"] / _bandwidth(int(count["num_bytes"]), facts) * 1e6
        computing = (count["matmul_flops"] / matmul_peak + count["conv_flops"] / conv_peak) * 1e6
        named = (count[name] for name in ("num_bytes", "matmul_flops", "conv_flops"))
        rows.append([weight * x for x in (*named, max(moving, computing), moving, computing)])
    return Work(*(sum(column) for column in zip(*rows, strict=True)))


def _bandwidth(num_bytes: int, facts: DeviceFacts) -> float:
    """Bytes per second; on a CPU what fits its caches may come from there."""
    from cuda_agent.judge.floor import effective_bandwidth

    memory = facts.read_bandwidth or 1.0
    if facts.kind != "cpu":
        return memory
    return effective_bandwidth(
        num_bytes, memory=memory, cache_bytes=facts.cache_bytes or 0, num_cores=facts.num_units
    )
