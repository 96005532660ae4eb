"""The memory floor, by hand."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.judge.floor import effective_bandwidth, floor_us, tensor_bytes


def test_tensor_bytes():
    assert tensor_bytes(torch.zeros(4, 5)) == 80
    assert tensor_bytes([torch.zeros(4, dtype=torch.float16), {"a": (torch.zeros(2), 3)}]) == 16
    assert tensor_bytes(torch.zeros(5).expand(100, 5)) == 20
    assert tensor_bytes(torch.zeros(0, 5)) == 0
    assert tensor_bytes(torch.zeros(3, 4)[:, ::2]) == 24
    assert tensor_bytes(3.0) == 0


def test_the_same_tensor_counts_once():
    x = torch.zeros(8)
    assert tensor_bytes([x, x, x.view(8)]) == 32
    assert tensor_bytes([x[:4], x[4:]]) == 32


def test_floor():
    # 4.6 GB at 4 TB/s with 15 % grace: 1000 us
    assert floor_us(4_600_000_000, 4e12) == pytest.approx(1000.0)
    assert floor_us(0, 4e12) == 0.0


def test_cache_on_cpu():
    facts = {"memory": 20e9, "cache_bytes": 32 << 20, "num_cores": 2}
    small = effective_bandwidth(1 << 20, **facts)
    assert small == pytest.approx(600e9)
    large = effective_bandwidth(8 << 30, **facts)
    assert 20e9 < large < 20.2e9
    # half from cache: 32 MiB / 600 GB/s + 32 MiB / 20 GB/s
    assert effective_bandwidth(64 << 20, **facts) == pytest.approx(2 / (1 / 600e9 + 1 / 20e9))
    assert effective_bandwidth(0, **facts) == pytest.approx(600e9)
