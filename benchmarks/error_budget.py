"""The error budget against arithmetic of many kinds, honest and not: how far each is from the line.

    python benchmarks/error_budget.py --device cpu --out error_budget.json

Every kind computes the same operator as eager does, in an order or a precision of its own, written with
PyTorch operators so that it runs alike on a CPU and a GPU. It is judged on plain draws and on the judge's
derived inputs; the figure is its error over the budget, worst of all: up to 1 passes. Reduced precision and
cheap formulas must end above 1, other orders of the same arithmetic below.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_agent.config import Track
from cuda_agent.judge.compare import compare_leaf
from cuda_agent.judge.probes import derive, probe_names

_ROWS = 128
_SEEDS = 2


@dataclass(frozen=True)
class Kind:
    """One way to compute an operator.

    Attributes:
        operator, name: of the table's row.
        honest: whether it must pass.
        compute: the candidate.
        reference: eager.
        shapes: of its inputs.
        dtype: of its inputs.
    """

    operator: str
    name: str
    honest: bool
    compute: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32


@dataclass
class Row:
    """What a kind reached: error over eager's error and over the budget, worst of draws and probes."""

    operator: str
    kind: str
    honest: bool
    over_eager: float
    over_budget: float
    worst_on: str
    passes: bool


# -- sums and products ------------------------------------------------------------------------------


def serial_sum(x: Tensor) -> Tensor:
    """One accumulator, left to right."""
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


def pairwise_sum(x: Tensor) -> Tensor:
    """Halves added to halves."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = torch.cat([x[..., :half] + x[..., half : 2 * half], x[..., 2 * half :]], dim=-1)
    return x[..., 0]


def serial_matmul(a: Tensor, b: Tensor) -> Tensor:
    """One accumulator for each output, K in order."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for k in range(a.shape[1]):
        total = torch.addcmul(total, a[:, k : k + 1], b[k : k + 1])
    return total


def tiled_matmul(tile: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Products of tiles of K, added in order."""

    def compute(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        for left, right in zip(a.split(tile, dim=1), b.split(tile, dim=0), strict=True):
            total = total + left @ right
        return total

    return compute


def split_k(parts: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Parts of K on their own, added at the end."""
    return lambda a, b: tiled_matmul(a.shape[1] // parts)(a, b)


def tf32(x: Tensor) -> Tensor:
    """Rounded to 10 bits of mantissa."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def rounded(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """Inputs rounded to a narrower dtype, products added in float32."""
    return lambda a, b: a.to(dtype).float() @ b.to(dtype).float()


def bf16_three_terms(a: Tensor, b: Tensor) -> Tensor:
    """Each input as a sum of three bfloat16 numbers, the six products that matter."""

    def terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        high = x.bfloat16().float()
        middle = (x - high).bfloat16().float()
        return high, middle, (x - high - middle).bfloat16().float()

    (a0, a1, a2), (b0, b1, b2) = terms(a), terms(b)
    return (a1 @ b1 + a0 @ b2 + a2 @ b0) + (a0 @ b1 + a1 @ b0) + a0 @ b0


def half_accumulators(a: Tensor, b: Tensor) -> Tensor:
    """Sums of 16 products kept in float16."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16, device=a.device)
    for left, right in zip(a.split(16, dim=1), b.split(16, dim=0), strict=True):
        total = (total.float() + (left.float() @ right.float()).half().float()).half()
    return total


# -- functions and rows -----------------------------------------------------------------------------


def fast_exp(x: Tensor) -> Tensor:
    """Through exp2 of a rounded product, as GPUs do it."""
    return torch.exp2(x * 1.4426950408889634)


def cheap_exp(x: Tensor) -> Tensor:
    """Two terms of the series on each of 256 steps."""
    return (1.0 + x / 256.0).pow(256)


def fast_tanh(x: Tensor) -> Tensor:
    """From exp, as a formula."""
    return 1.0 - 2.0 / (fast_exp(2.0 * x) + 1.0)


def softmax_by(exp: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Over the last dimension."""

    def compute(x: Tensor) -> Tensor:
        e = exp(x - x.amax(-1, keepdim=True))
        return e / serial_sum(e)[..., None]

    return compute


def norm_two_pass(x: Tensor) -> Tensor:
    """Layer norm: mean, then variance of the differences."""
    d = x - (serial_sum(x) / x.shape[-1])[..., None]
    return d * torch.rsqrt(serial_sum(d * d)[..., None] / x.shape[-1] + 1e-5)


def norm_welford(x: Tensor) -> Tensor:
    """Layer norm: running mean and variance."""
    mean, total = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for count, column in enumerate(x.unbind(-1), start=1):
        delta = column - mean
        mean = mean + delta / count
        total = total + delta * (column - mean)
    return (x - mean[..., None]) * torch.rsqrt(total[..., None] / x.shape[-1] + 1e-5)


def norm_in_half(x: Tensor) -> Tensor:
    """Layer norm with its statistics rounded to float16."""
    mean = x.mean(-1, keepdim=True).half().float()
    var = x.var(-1, keepdim=True, unbiased=False).half().float()
    return (x - mean) * torch.rsqrt(var + 1e-5)


def gelu_by_tanh(x: Tensor) -> Tensor:
    """The tanh formula in place of erf: another function."""
    return F.gelu(x, approximate="tanh")


def gelu_formula(x: Tensor) -> Tensor:
    """The tanh formula with tanh from exp."""
    return 0.5 * x * (1.0 + fast_tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def kinds() -> Iterator[Kind]:
    """Every row of the table."""
    rows = ((_ROWS, 8192),)
    total = lambda x: x.sum(-1)  # noqa: E731
    yield Kind("sum of 8192", "serial", True, serial_sum, total, rows)
    yield Kind("sum of 8192", "pairwise", True, pairwise_sum, total, rows)
    yield Kind(
        "sum of 8192", "inputs in bfloat16", False, lambda x: x.bfloat16().float().sum(-1), total, rows
    )
    for depth in (64, 1024, 8192):
        shapes = ((_ROWS, depth), (depth, _ROWS))
        for name, honest, compute in (
            ("serial", True, serial_matmul),
            ("tiles of 32", True, tiled_matmul(32)),
            ("split in 8", True, split_k(8)),
            ("bfloat16, three terms", True, bf16_three_terms),
            ("TF32", False, lambda a, b: tf32(a) @ tf32(b)),
            ("float16 inputs", False, rounded(torch.float16)),
            ("bfloat16 inputs", False, rounded(torch.bfloat16)),
        ):
            yield Kind(f"matmul, K = {depth}", name, honest, compute, torch.matmul, shapes)
    half = ((_ROWS, 1024), (1024, _ROWS))
    for name, honest, compute in (
        ("float32 accumulators", True, lambda a, b: tiled_matmul(32)(a.float(), b.float()).half()),
        ("float16 accumulators", False, half_accumulators),
    ):
        yield Kind("float16 matmul, K = 1024", name, honest, compute, torch.matmul, half, torch.float16)
    wide = ((_ROWS, 1000),)
    softmax = lambda x: F.softmax(x, -1)  # noqa: E731
    yield Kind("softmax", "exp by exp2", True, softmax_by(fast_exp), softmax, wide)
    yield Kind("softmax", "exp by a short series", False, softmax_by(cheap_exp), softmax, wide)
    norm = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731
    yield Kind("layer norm", "two passes", True, norm_two_pass, norm, wide)
    yield Kind("layer norm", "Welford", True, norm_welford, norm, wide)
    yield Kind("layer norm", "statistics in float16", False, norm_in_half, norm, wide)
    yield Kind("GELU (tanh)", "tanh from exp", True, gelu_formula, gelu_by_tanh, wide)
    yield Kind("GELU (erf)", "the tanh formula", False, gelu_by_tanh, F.gelu, wide)
    yield Kind("tanh", "from exp", True, fast_tanh, torch.tanh, wide)
    yield Kind(
        "tanh", "in float16", False, lambda x: torch.tanh(x.half().float()).half().float(), torch.tanh, wide
    )


# -- the table --------------------------------------------------------------------------------------


def inputs_of(kind: Kind, seed: int) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Plain draws of rand and randn, and what the judge derives from them."""
    generator = torch.Generator().manual_seed(seed)
    for draw in (torch.randn, torch.rand):
        plain = [draw(*shape, generator=generator).to(kind.dtype) for shape in kind.shapes]
        yield draw.__name__, plain
        for probe in probe_names():
            derived = derive(plain, probe, generator)
            if derived is not None:
                yield f"{draw.__name__}, {probe}", [x for x in derived if isinstance(x, Tensor)]


def measure(kind: Kind, device: str) -> Row:
    """Judge one kind on every input."""
    row = Row(kind.operator, kind.name, kind.honest, 0.0, 0.0, "", True)
    for seed in range(_SEEDS):
        for name, inputs in inputs_of(kind, seed):
            moved = [x.to(device) for x in inputs]
            exact = kind.reference(*(x.double() for x in moved))
            eager = kind.reference(*moved)
            report = compare_leaf(kind.compute(*moved), eager, exact, track=Track.MATCHED, name="output")
            own = compare_leaf(eager, eager, exact, track=Track.MATCHED, name="output")
            if report.scaled is None or report.budget is None or own.scaled is None:
                row.passes = row.passes and report.ok
                continue
            limits = (report.budget.max, report.budget.rms)
            over = max(error / limit for error, limit in zip(report.scaled, limits, strict=True))
            if over > row.over_budget:
                row.over_budget, row.worst_on = over, name
                row.over_eager = report.scaled[0] / max(own.scaled[0], 1e-30)
            row.passes = row.passes and report.ok
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for kind in kinds():
        rows.append(measure(kind, options.device))
        print(line(rows[-1]), flush=True)
    gpu = torch.cuda.get_device_name() if options.device != "cpu" else platform.machine()
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": gpu,
        "torch": torch.__version__,
    }
    options.out.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1))
    unexpected = [row for row in rows if row.passes != row.honest]
    return 1 if unexpected else 0


def line(row: Row) -> str:
    """One row for people, as Markdown."""
    expected = "" if row.passes == row.honest else " UNEXPECTED"
    return (
        f"| {row.operator} | {row.kind} | {'honest' if row.honest else 'not'} | {row.over_eager:.3g} "
        f"| {row.over_budget:.3g} | {row.worst_on} | {'passes' if row.passes else 'refused'}{expected} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
