"""The doctor on this machine, and on one that lacks things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.inspection.doctor import Check, Report, Status, diagnose, healthy, render


def test_this_machine_can_do_the_job() -> None:
    checks = {check.name: check for check in diagnose()}
    import torch

    assert torch.__version__ in checks["PyTorch"].found
    assert checks["C++ compiler"].status is Status.OK
    assert checks["Python"].status is Status.OK
    assert healthy(list(checks.values()))


def test_all_that_is_not_ok_has_a_remedy() -> None:
    for check in diagnose():
        assert check.found
        assert check.status is Status.OK or check.remedy, check


SCRIPT = """
import json
from cuda_agent.inspection.doctor import diagnose
print(json.dumps({c.name: [c.status, c.found, c.remedy] for c in diagnose()}))
"""


def test_a_bare_machine_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    env = {
        "PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "CUDA_AGENT_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)
    assert checks["C++ compiler"][0] == "fail" and "apt-get install -y g++" in checks["C++ compiler"][2]
    assert checks["cache"][0] == "fail" and "CUDA_AGENT_CACHE" in checks["cache"][2]
    assert checks["ripgrep"][0] == "warn" and "ripgrep" in checks["ripgrep"][2]
    assert (checks["isolation"][0] == "ok") == ("namespaces" in checks["isolation"][1])
    assert (checks["isolation"][0] == "ok") == (checks["isolation"][2] == "")


def test_the_table_shows_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    checks = [Check("a", Status.OK, "[found]"), Check("b", Status.FAIL, "none", "Install [it].")]
    Console(width=100).print(render(checks))
    shown = capsys.readouterr().out
    assert "[found]" in shown and "Install [it]." in shown and "fail" in shown
    assert not healthy(checks) and healthy(checks[:1])


def test_the_report_is_json_for_machines() -> None:
    report = Report((Check("a", Status.WARN, "none", "Install it."),))
    assert json.loads(report.to_json()) == {
        "healthy": True,
        "checks": [{"name": "a", "status": "warn", "found": "none", "remedy": "Install it."}],
    }
    assert "Install it." in report.text()
