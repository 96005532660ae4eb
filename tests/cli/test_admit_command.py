"""``cuda-agent admit``: as a user runs it, cut off and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RELU = """
import time
import torch
time.sleep({delay})
batch_size = 4096
class Model(torch.nn.Module):
    def forward(self, x):
        return {result}
def get_inputs(): return [torch.rand(batch_size, 50)]
def get_init_inputs(): return []
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cuda_agent", "admit", "--device", "cpu", *map(str, arguments)]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "rows.jsonl"
    tasks.mkdir()
    (tasks / "1_relu.py").write_text(RELU.format(delay=0, result="torch.relu(x)"))
    (tasks / "2_exp.py").write_text(RELU.format(delay=3, result="x.exp()"))
    arguments = command(tasks, "--shrink-batch", 2, "--out", out)
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 100
        while not (out.exists() and out.read_bytes().endswith(b"\n")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGKILL)
    kept = out.read_text()
    assert kept.count("\n") == 1
    out.write_text(kept + '{"id": "2_ex')  # as a write that the kill cut off

    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300)
    lines = out.read_text().splitlines()
    assert lines[0] == kept.strip()
    rows = [json.loads(line) for line in (lines[0], lines[-1])]
    assert len(lines) == 3  # the cut line stays, closed
    assert [row["name"] for row in rows] == ["1_relu", "2_exp"]
    assert rows[0]["shrunk"] == {"batch_size": [4096, 2]}
    assert rows[0]["admission"]["inputs"] == ["float32[2,50]"]
    assert rows[0]["setting"]["shrink_batch"] == 2
    assert "1e-2: 1 of 2 degenerate (identity 1)" in done.stdout
    assert "judge: 0 of 2 degenerate" in done.stdout

    again = subprocess.run([*arguments, "--json"], capture_output=True, text=True, check=True, timeout=300)
    assert [json.loads(line) for line in again.stdout.splitlines()] == rows
    assert out.read_text().splitlines() == lines


def test_errors_are_one_line(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path / "none"), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    broken = tmp_path / "task.py"
    broken.write_text("class Model: ...\n")
    done = subprocess.run(command(broken), capture_output=True, text=True, check=False, timeout=60)
    assert "defines no" in done.stderr and len(done.stderr.splitlines()) == 1
