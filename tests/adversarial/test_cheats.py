"""Cheats that exist on a CPU: each must be refused, for the right reason. Real builds, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import TASK
from cheat import Cheat
from cheats import CHEATS
from harmless import HARMLESS

from cuda_agent.config import Device, JudgeConfig
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Stage
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=20.0)


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, CONFIG) as opened:
        yield opened


def _params(cheats: tuple[Cheat, ...]) -> list[object]:
    return [pytest.param(c, id=c.name, marks=[] if c.core else pytest.mark.slow) for c in cheats]


@pytest.mark.parametrize("cheat", _params(CHEATS))
def test_a_cheat_is_refused(session: JudgeSession, tmp_path: Path, cheat: Cheat) -> None:
    result = session.judge(freeze(cheat.write(tmp_path)), cheat.scope)
    named = {violation.kind for violation in result.violations}
    assert (result.correct, result.infrastructure) == (False, None), result.to_json()
    assert result.reward in (-1, None) and result.detail
    assert named <= cheat.kinds and bool(named) == bool(cheat.kinds), result.detail


@pytest.mark.parametrize("attempt", _params(HARMLESS))
def test_what_comes_to_nothing_is_no_offence(session: JudgeSession, tmp_path: Path, attempt: Cheat) -> None:
    result = session.judge(freeze(attempt.write(tmp_path)), attempt.scope)
    assert (result.stage, result.correct, result.violations) == (Stage.VERIFY, True, ()), result.to_json()
