"""On a GPU: fused packed attention, and every stage in bfloat16 on a random model with a cheap reward."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from test_training_stages import command, environment
from training_run import curve, make_run

from cuda_agent.rl.attention import packed_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_fused_attention_equals_plain_with_gradients() -> None:
    torch.manual_seed(0)
    rows = [torch.randn(1, heads, 900, 64, device="cuda") for heads in (14, 2, 2)]
    bounds = torch.tensor([0, 300, 301, 900], device="cuda", dtype=torch.int32)
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.detach().clone().to(dtype).requires_grad_() for x in rows]
        y, _ = packed_attention(
            torch.nn.Module(), *inputs, cu_seq_lens_q=bounds, max_length_q=599, scaling=64**-0.5
        )
        y.float().square().sum().backward()
        outputs.append([y.detach().float(), *(x.grad.float() for x in inputs)])
    for plain, fused in zip(*outputs, strict=True):
        assert (plain - fused).abs().max() < 0.03 * plain.abs().max()


def test_all_stages_in_bfloat16_and_a_finished_one_is_left_alone(tmp_path: Path) -> None:
    config = make_run(tmp_path, model={"device": "cuda", "dtype": "bfloat16"})
    for _ in range(2):
        done = subprocess.run(
            command(config, tmp_path / "out", "all"),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    rows = curve(tmp_path / "out" / "ppo")
    assert len(rows) == 3
    assert max(row["gap"] for row in rows) < 0.02  # sampler and trainer agree in half precision
    assert "ppo is finished" in done.stderr
