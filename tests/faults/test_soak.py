"""A short soak: the full one is ``python benchmarks/soak.py --num 2000``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_mixed_candidates_get_their_verdicts_and_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [sys.executable, str(SOAK), "--num", "20", "--callers", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    tally = json.loads(out.read_text())
    assert done.returncode == 0, (tally, done.stderr[-2000:])
    assert tally["num"] == 20 and tally["clean"] is True and len(tally["by_kind"]) == 10
