"""After the filter: threads start, processes do not, by whatever call."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
CODE = """
import ctypes, os, threading
from cuda_agent.sandbox.no_children import forbid_children
filtered = threading.Event()
failed = []
def attempts():
    libc = ctypes.CDLL(None, use_errno=True)
    for name, make in {
        "fork": os.fork,
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "exec": lambda: os.execv("/bin/true", ["true"]),
    }.items():
        try:
            make()
        except PermissionError:
            continue
        failed.append(name)
    for number in NUMBERS:
        if libc.syscall(number, 17, 0, 0, 0, 0) != -1:
            failed.append(str(number))
def waiting():
    filtered.wait()
    attempts()
early = threading.Thread(target=waiting)
early.start()
assert forbid_children()
filtered.set()
early.join()
late = threading.Thread(target=attempts)
late.start()
late.join()
attempts()
assert not failed, failed
print("all refused")
"""
# clone with a signal and no flags, fork and vfork, by their plain numbers and by those of x32.
NUMBERS = {
    "x86_64": [56, 57, 58, *(0x4000_0000 | number for number in (56, 57, 58))],
    "aarch64": [220],
}


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="no filter for this processor")
def test_nothing_starts_a_process() -> None:
    code = CODE.replace("NUMBERS", repr(NUMBERS[platform.machine()]))
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env={"PYTHONPATH": str(SRC)}, capture_output=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"all refused"), done.stderr.decode()
