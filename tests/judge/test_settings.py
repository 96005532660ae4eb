"""PyTorch's settings are put back after a candidate's code, and the change is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from candidates import TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.workspace.snapshot import freeze

# In a process of its own: the settings are the whole process's.
CHANGE = """
import json, torch
from cuda_agent.judge.settings import Settings, _read
settings, before = Settings(), _read()
assert settings.put_back() == []
{statement}
print(json.dumps([settings.put_back(), settings.put_back(), _read() == before]))
"""
STATEMENTS = {
    "torch.backends.cuda.matmul.allow_tf32 = True": "fp32_precision cuda matmul",
    "torch.backends.cudnn.allow_tf32 = False": "cudnn_allow_tf32",
    "torch.backends.fp32_precision = 'tf32'": "fp32_precision generic all",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "fp32_precision cuda matmul",
    "torch.set_float32_matmul_precision('medium')": "float32_matmul_precision",
    "torch.backends.cudnn.benchmark = True": "cudnn_benchmark",
    "torch.backends.cudnn.deterministic = True": "cudnn_deterministic",
    "torch.backends.cudnn.enabled = False": "cudnn_enabled",
    "torch.backends.mkldnn.enabled = False": "mkldnn_enabled",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False": (
        "cublas_allow_fp16_reduced_precision_reduction"
    ),
    "torch.use_deterministic_algorithms(True)": "deterministic_algorithms",
    "torch.set_default_dtype(torch.float64)": "default_dtype",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "num_threads",
}


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_change_is_named_and_undone(statement: str) -> None:
    _check_all([statement])


def test_changes_are_named_and_undone() -> None:
    _check_all(list(STATEMENTS))


def _check_all(statements: list[str]) -> None:
    code = CHANGE.format(statement="\n".join(statements))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed, again, restored = json.loads(done.stdout)
    missing = [name for s in statements if not any((name := STATEMENTS[s]) in text for text in changed)]
    assert (missing, again, restored) == ([], [], True), changed


@pytest.mark.parametrize(
    "where",
    [
        "imports",
        pytest.param("init", marks=pytest.mark.slow),
        pytest.param("forward", marks=pytest.mark.slow),
    ],
)
def test_a_candidate_that_changes_settings_is_noted(tmp_path: Path, where: str) -> None:
    statement = "torch.backends.cudnn.benchmark = True"
    forward = "y = torch.empty_like(x)\ncuda_extension.run(y, x, self.scale, self.shift)\nreturn y"
    changes = {"forward": f"{statement}\n{forward}"} if where == "forward" else {where: statement}
    with JudgeSession(TASK, JudgeConfig(device=Device.CPU)) as session:
        result = session.judge(freeze(write_candidate(tmp_path, **changes)), Scope.VERIFY)
        honest = session.judge(freeze(write_candidate(tmp_path / "honest")), Scope.VERIFY)
    assert result.correct is True, result.to_json()
    assert any("cudnn_benchmark False -> True" in note for note in result.notes), result.notes
    assert not any("settings" in note for note in honest.notes)
