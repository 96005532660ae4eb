"""Cheats on a GPU: each must be refused, and the next candidate be judged right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from candidates import KERNEL as CPU_KERNEL
from cheat import Cheat
from cheats_cuda import CUDA_CHEATS
from cuda_candidates import KERNEL, LARGE, candidate

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge import JudgeSession

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=0.5, run_limit_s=30.0)
    with JudgeSession(LARGE, config) as opened:
        yield opened


@pytest.mark.parametrize("cheat", [pytest.param(c, id=c.name) for c in CUDA_CHEATS])
def test_a_cheat_is_refused(session: JudgeSession, cheat: Cheat) -> None:
    kernel = KERNEL if cheat.kernel is CPU_KERNEL else cheat.kernel
    frozen = candidate(kernel=kernel, forward=cheat.forward, imports=cheat.imports)
    result = session.judge(frozen, cheat.scope)
    named = {violation.kind for violation in result.violations}
    assert (result.correct, result.infrastructure) == (False, None), result.to_json()
    assert named <= cheat.kinds and bool(named) == bool(cheat.kinds), result.detail


def test_an_honest_one_after_them(session: JudgeSession) -> None:
    assert session.judge(candidate(), CUDA_CHEATS[0].scope).correct is True
