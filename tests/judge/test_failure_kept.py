"""What is kept of a failed check for ``cuda-agent explain``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.config import Scope
from cuda_agent.inspection.error_map import failure_lines
from cuda_agent.judge.candidate import Produced
from cuda_agent.judge.entry import FAILURE_FILE, keep_failure
from cuda_agent.judge.exchange import Block, describe, write
from cuda_agent.judge.reference import Drawn, Expected
from cuda_agent.judge.verify import _failure


def failing_call(num_elements: int) -> tuple[Drawn, Expected, Produced]:
    """A call whose first output element is wrong."""
    inputs, truth = [torch.ones(num_elements)], torch.zeros(num_elements)
    wrong = truth.clone()
    wrong[0] = 1.0
    plan = describe(inputs)
    block = Block(plan["nbytes"], device="cpu")
    write(inputs, plan, block)
    expected = Expected(
        plan=describe(truth),
        outputs=truth,
        outputs64=None,
        changed={},
        finite=True,
        why64="",
        shared=False,
        block=block,
    )
    produced = Produced(wrong, wrong, describe(wrong), ("cpu",), (), shared=False, tampered=False)
    return Drawn(plan, block, ("float32",)), expected, produced


def test_a_small_failing_call_is_kept_and_told(tmp_path: Path) -> None:
    keep_failure(tmp_path, Scope.VERIFY, _failure("check 1/5", *failing_call(64)))
    lines = failure_lines(tmp_path / FAILURE_FILE)
    assert lines[0] == "failing check: check 1/5"
    assert any("1 of 64 elements are wrong" in line for line in lines)


@pytest.mark.parametrize("scope", [Scope.VERIFY, Scope.PROFILE])
def test_a_large_failing_call_leaves_no_file(tmp_path: Path, scope: Scope) -> None:
    keep_failure(tmp_path, scope, _failure("earlier", *failing_call(64)))
    keep_failure(tmp_path, scope, _failure("check 1/5", *failing_call(6 << 20)))
    assert not (tmp_path / FAILURE_FILE).exists()


def test_private_checks_are_never_kept(tmp_path: Path) -> None:
    keep_failure(tmp_path, Scope.FULL, _failure("probe: sign_flip", *failing_call(64)))
    assert not (tmp_path / FAILURE_FILE).exists()
