"""Device faults cost one candidate each; the next one on the same GPU is judged right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from candidates import TASK
from cuda_candidates import KERNEL, candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Fault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
_FIRST = "    for (long i = blockIdx.x"
_LAUNCH = "    scaled_relu<<<"
FAULTS = {
    "illegal": KERNEL.replace(_FIRST, "    *(volatile int*)8 = 1;\n" + _FIRST, 1),
    "misaligned": KERNEL.replace(
        _FIRST, "    *(volatile int4*)((char*)y + 4) = int4{};\n" + _FIRST, 1
    ).replace("volatile int4*", "int4*"),
    "assert": "#include <cassert>\n" + KERNEL.replace(_FIRST, "    assert(rows < 0);\n" + _FIRST, 1),
    "endless": KERNEL.replace(_FIRST, "    while (*(volatile long*)&rows >= 0) {}\n" + _FIRST, 1),
    "device memory": KERNEL.replace(
        _LAUNCH,
        "    for (void* p; cudaMalloc(&p, 1ul << 30) == cudaSuccess;) cudaMemsetAsync(p, 0, 1ul << 30);\n"
        "    __builtin_trap();\n" + _LAUNCH,
        1,
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
