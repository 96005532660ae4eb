"""The judge's own clock, the baseline cache, float64 promotion."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge.baseline import BaselineCache
from cuda_agent.judge.devices import choose_place
from cuda_agent.judge.evidence import CaseSamples, manipulation, wall_bound
from cuda_agent.judge.promote import run_in_float64
from cuda_agent.result import ViolationKind
from cuda_agent.task import Task


def test_the_wall_bound_is_the_smallest_slope_less_its_uncertainty() -> None:
    exact = {"eager_us": 50.0, "eager_wall": [50.0]}
    assert wall_bound([1000.0, 1200.0], "cuda", **exact) == pytest.approx(1000.0 * 0.95 - 60.0)
    assert wall_bound([100.0], "cpu", **exact) == pytest.approx(100.0 * 0.85 - 5.0)
    assert wall_bound([20.0], "cuda", **exact) == 0.0


def test_a_busy_machine_does_not_accuse_an_honest_candidate() -> None:
    """Where the clock says four times what eager's samples say, so it may of the candidate."""
    bound = wall_bound([400.0], "cpu", eager_us=100.0, eager_wall=[400.0, 500.0])
    assert bound == pytest.approx(100.0 * 0.85 - 5.0)


def test_a_claim_below_half_of_the_clock_is_manipulation() -> None:
    honest = CaseSamples(wall=[1000.0], manipulated=False)
    forged = CaseSamples(wall=[1000.0], manipulated=True)
    assert manipulation(honest) is None
    violation = manipulation(forged)
    assert violation is not None and violation.kind is ViolationKind.TIME_MANIPULATION


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaselineCache:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    config = JudgeConfig(device=Device.CPU)
    return BaselineCache(
        Task("x = 1"), config, choose_place("cpu", config), device_name="d", versions={"torch": "1"}
    )


def test_a_cached_baseline_is_rescaled_by_eager(cache: BaselineCache) -> None:
    assert cache.get(0) is None
    cache.put(0, eager=[100.0, 100.0], compile=[50.0, 60.0])
    cached = cache.get(0)
    assert cached is not None
    now = cached.rescaled(110.0)
    assert now is not None and now.samples == pytest.approx((55.0, 66.0))
    assert cached.drift(110.0) == pytest.approx(0.1)


def test_a_failed_compile_is_remembered_as_absent(cache: BaselineCache) -> None:
    cache.put(0, eager=[100.0], compile=[], why="graph break")
    cached = cache.get(0)
    assert cached is not None and cached.rescaled(100.0) is None and cached.why == "graph break"


class Casts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 1 / 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = (x * self.weight).half().float()
        return half.sum(dtype=torch.float32) + torch.zeros(1, dtype=torch.float16)


def test_casts_are_promoted_to_float64() -> None:
    model = Casts().eval()
    x = torch.randn(4)
    with torch.no_grad():
        got = run_in_float64(model, [x])
    assert got.dtype is torch.float64
    expected = (x.double() * model.weight.double()).sum()
    assert abs(float((got - expected).detach())) < 1e-12
    assert model.weight.dtype is torch.float32
