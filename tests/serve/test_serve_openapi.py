"""The OpenAPI document, held against the running server by schemathesis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from served import TOKEN, Served


@pytest.mark.slow
def test_every_answer_is_as_the_document_says(tmp_path: Path) -> None:
    with Served(tmp_path, queue=10_000) as server:
        server.gate.set()
        argv = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
        argv += ["--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "40", "--seed", "7"]
        # A body that fits the schema may still be no candidate or no task: that is refused, and tested apart.
        argv += ["--exclude-checks", "positive_data_acceptance", "--no-color"]
        env = {**os.environ, "PYTHONUTF8": "1"}
        done = subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " 0 tested" not in done.stdout
