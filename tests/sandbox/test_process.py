"""Sandboxed processes: what they do not inherit, and that nothing of them survives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.pool.lease import lease
from cuda_agent.sandbox.process import Limits, clean_env, spawn


def run(code: str, tmp_path: Path, limits: Limits | None = None) -> tuple[int | None, str]:
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = spawn(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=clean_env(),
            limits=limits,
            stdout=file,
            stderr=file,
        )
        status = process.wait(20)
        process.kill_group()
    return status, out.read_text()


def test_secrets_and_proxies_stay_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HTTPS_PROXY", "CUDA_AGENT_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    status, text = run("import os; print('secret' in os.environ.values())", tmp_path)
    assert (status, text.strip()) == (0, "False")


@pytest.mark.skipif(os.getuid() != 0, reason="a network namespace of one's own needs root here")
def test_there_is_no_network(tmp_path: Path) -> None:
    _, text = run("import socket; print([name for _, name in socket.if_nameindex()])", tmp_path)
    assert text.strip() in ("[]", "['lo']")


def test_limits_hold(tmp_path: Path) -> None:
    status, text = run("x = bytearray(1 << 30)", tmp_path, Limits(memory_bytes=512 << 20))
    assert status == 1 and "MemoryError" in text
    status, _ = run("open('big', 'wb').write(bytes(1 << 20))", tmp_path, Limits(file_bytes=1 << 16))
    assert status not in (0, None)
    assert (tmp_path / "big").stat().st_size <= 1 << 16


def test_grandchildren_die_with_the_group(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '61.5']); print('ready', flush=True); input()"
    reader, writer = os.pipe()
    process = spawn(
        [sys.executable, "-c", code], cwd=tmp_path, env=clean_env(), stdout=writer, stdin=subprocess.PIPE
    )
    os.close(writer)
    assert os.read(reader, 5) == b"ready"
    process.kill_group()
    process.kill_group()
    os.close(reader)
    time.sleep(0.1)
    assert not any("sleep\0" + "61.5" in _cmdline(path.name) for path in Path("/proc").glob("[0-9]*"))


def test_children_die_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "src")!r})
from pathlib import Path
from cuda_agent.sandbox.process import clean_env, spawn
child = spawn(["sleep", "62.5"], cwd=Path("."), env=clean_env())
time.sleep(0.3)
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while "62.5" in _cmdline(str(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "62.5" not in _cmdline(str(pid))


def test_a_lease_is_exclusive_and_freed_by_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "src")!r})
from cuda_agent.pool.lease import lease
with lease("cpu"):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {holder.pid}"])
    start = time.monotonic()
    with lease("cpu"):
        waited = time.monotonic() - start
    killer.wait()
    holder.wait()
    holder.stdout.close()
    assert waited > 0.2


def _cmdline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
