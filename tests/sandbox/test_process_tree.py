"""The tree of a process, its processor time and its memory, against processes made for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from cuda_agent.sandbox import process_tree
from cuda_agent.sandbox.process_tree import members, processor_seconds, resident_bytes

CODE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "block = b'x' * (64 << 20); print(flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
end = time.process_time() + 0.3
while time.process_time() < end: pass
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.fixture
def parent() -> Iterator[tuple[int, int]]:
    """A process that has taken 0.3 s, and its child that holds 64 MiB."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", CODE], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    yield process.pid, int(process.stdout.readline())
    process.communicate("\n")


@pytest.mark.parametrize("listed", [True, False], ids=["children listed", "by parent"])
def test_a_child_counts(parent: tuple[int, int], listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(process_tree.Path, "exists", lambda _: False)
    pid, child = parent
    assert sorted(members(pid)) == sorted([pid, child])
    assert 0.25 < processor_seconds(pid) < 5.0
    assert resident_bytes(pid) > resident_bytes(child) > 64 << 20


def test_a_process_that_is_gone_counts_nothing() -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], check=True, stdout=subprocess.PIPE
    )
    pid = int(process.stdout)
    assert processor_seconds(pid) == 0.0 and resident_bytes(pid) == 0
