"""Device faults cost one candidate each; the next one on the same GPU is judged right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from candidates import TASK
from cuda_candidates import DEVICE_FAULTS, candidate, first_on_device, first_on_host

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.devices import Place
from cuda_agent.result import Fault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
FAULTS = {
    **DEVICE_FAULTS,
    # Its body must do something: ptxas removes a loop that does not.
    "endless": first_on_device('while (rows >= 0) asm volatile("nanosleep.u32 64;");'),
    "device memory": first_on_host(
        "    for (void* p; cudaMalloc(&p, 1ul << 30) == cudaSuccess;) cudaMemsetAsync(p, 0, 1ul << 30);\n"
        "    __builtin_trap();"
    ),
}


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=1.0, run_limit_s=20.0)
    with JudgeSession(TASK, config) as opened:
        yield opened


@pytest.mark.parametrize("name", FAULTS)
def test_a_device_fault_costs_one_candidate(session: JudgeSession, name: str) -> None:
    result = session.judge(candidate(kernel=FAULTS[name]), Scope.VERIFY)
    assert (result.correct, result.infrastructure, result.violations) == (False, None, ()), result.to_json()
    assert isinstance(result.fault, Fault)
    assert session.judge(candidate(), Scope.VERIFY).correct is True


def test_a_gpu_that_goes_is_taken_out_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one verdict to the next no fresh process finds the device any more."""
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=1.0, run_limit_s=20.0)
    with JudgeSession(TASK, config) as session:
        assert session.judge(candidate(), Scope.VERIFY).correct is True
        hidden = {**session.place.worker_env(config), "CUDA_VISIBLE_DEVICES": ""}
        monkeypatch.setattr(Place, "worker_env", lambda *_, **__: hidden)
        assert session.judge(candidate(), Scope.VERIFY).correct is True  # its process was there before
        lost = session.judge(candidate(), Scope.VERIFY)
        after = session.judge(candidate(), Scope.VERIFY)
    for result in (lost, after):
        assert (result.correct, result.reward, result.fault) == (None, None, None), result.to_json()
        assert result.infrastructure is not None and "out of use" in result.infrastructure
