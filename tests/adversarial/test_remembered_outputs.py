"""Outputs remembered by the values of all inputs (HACKS.md 61): always right, never computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from candidates import TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.unseen import Samples, least_us
from cuda_agent.result import ViolationKind
from cuda_agent.workspace.snapshot import freeze

DEEP = replace(
    TASK,
    code=TASK.code.replace("torch.randn(64, 384)", "torch.randn(512, 384)").replace(
        "return torch.relu(x * self.scale) + self.shift",
        "x = x * self.scale\n        for _ in range(8):\n            x = torch.sin(x) + self.shift\n"
        "        return x",
    ),
)
SINES = """
#include <cmath>
static void compute(float* y, const float* x, const float* scale, const float* shift, long rows, long width) {
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < width; ++j) {
            float v = x[i * width + j] * scale[j];
            for (int k = 0; k < 8; ++k) v = std::sin(v) + shift[j];
            y[i * width + j] = v;
        }
}
"""
HONEST = """
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    compute(y, x, scale, shift, rows, width);
}
"""
REMEMBERING = """
#include <cstring>
#include <deque>
#include <vector>
using Values = std::vector<float>;
static std::deque<std::pair<Values, Values>> known;

extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    const size_t size = rows * width;
    Values key(x, x + size);
    key.insert(key.end(), scale, scale + width);
    key.insert(key.end(), shift, shift + width);
    for (const auto& [k, v] : known)
        if (k == key) { std::memcpy(y, v.data(), size * sizeof(float)); return; }
    compute(y, x, scale, shift, rows, width);
    known.emplace_back(std::move(key), Values(y, y + size));
    if (known.size() > 16) known.pop_front();
}
"""


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=60.0)
    with JudgeSession(DEEP, config) as opened:
        yield opened


@pytest.mark.slow
def test_a_cache_keyed_by_every_value_is_found_by_values_it_has_not_seen(
    session: JudgeSession, tmp_path: Path
) -> None:
    result = session.judge(freeze(write_candidate(tmp_path, kernel=SINES + REMEMBERING)), Scope.FULL)
    assert result.correct is False and result.reward == -1, result.to_json()
    assert {v.kind for v in result.violations} == {ViolationKind.HIDDEN_STATE}
    assert "values it has not seen" in result.detail


@pytest.mark.slow
def test_the_same_kernel_without_a_memory_is_accepted(session: JudgeSession, tmp_path: Path) -> None:
    result = session.judge(freeze(write_candidate(tmp_path, kernel=SINES + HONEST)), Scope.FULL)
    assert result.correct is True, result.detail


def test_what_unseen_values_allow() -> None:
    slow = Samples([1000.0, 1500.0], [200.0, 200.0])
    assert least_us(slow, "cuda", eager_us=200.0) == pytest.approx(1000.0 * 0.9 - 10.0)
    slower = Samples([1000.0, 1500.0], [400.0, 400.0])  # as a factor
    assert least_us(slower, "cuda", eager_us=200.0) == pytest.approx(500.0 * 0.9 - 10.0)
    later = Samples([400.0, 500.0], [1750.0, 1750.0])  # by the same time
    assert least_us(later, "cuda", eager_us=1650.0) == pytest.approx(300.0 * 0.9 - 10.0)
    short = Samples([30.0], [30.0])
    assert least_us(short, "cpu", eager_us=10.0) == 0.0
