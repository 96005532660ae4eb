"""What a sandboxed process cannot see, reach or leave behind, on hosts that allow namespaces."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cuda_agent.sandbox import process as processes
from cuda_agent.sandbox.isolation import Isolation, isolation
from cuda_agent.sandbox.process import Limits, clean_env, spawn
from cuda_agent.sandbox.view import View

pytestmark = pytest.mark.skipif(
    isolation() is Isolation.NONE, reason="this host forbids namespaces: processes are not isolated here"
)
BEST = isolation()
MODES = [Isolation.ROOT, Isolation.USER] if BEST is Isolation.ROOT else [BEST]
MIB = 1 << 20


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    """Each kind of isolation that this host allows."""
    monkeypatch.setattr(processes, "isolation", lambda: request.param)
    return Isolation(request.param)


def run(
    code: str, folder: Path, *, limits: Limits | None = None, view: View | None = None
) -> tuple[int, str]:
    """Exit status and output of Python code in a sandbox whose work folder is ``folder``."""
    out = folder / "out"
    with out.open("wb") as file:
        process = spawn(
            [sys.executable, "-c", code],
            cwd=folder,
            env=clean_env(),
            limits=limits,
            view=view or View(write=(folder,)),
            stdout=file,
            stderr=file,
        )
        status = process.wait(60)
        process.kill_group()
    assert status is not None
    return status, out.read_text()


def test_libraries_that_ask_for_the_user_are_answered(mode: Isolation, tmp_path: Path) -> None:
    assert run("import getpass; print(getpass.getuser())", tmp_path) == (0, "sandbox\n")


def test_files_of_the_host_are_absent_and_its_system_cannot_be_written(
    mode: Isolation, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    other = tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "secret").write_text("x")
    marker = tempfile.mkdtemp(dir="/tmp")  # the host's own
    code = f"""
import os
print(os.path.exists({str(other)!r}), os.path.exists({marker!r}))
for path in ('/etc/made', '/usr/made', '/made', '/proc/sys/kernel/hostname'):
    try:
        open(path, 'w')
        print('wrote', path)
    except OSError:
        pass
open('/tmp/fine', 'w').write('x')
open('here', 'w').write('kept')
"""
    status, text = run(code, work)
    assert (status, text) == (0, "False False\n")
    assert (work / "here").read_text() == "kept"
    assert not Path("/tmp/fine").exists()


def test_other_processes_cannot_be_seen_or_killed(
    mode: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "swordfish")
    code = f"""
import os, signal
print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))
for pid in (1, os.getppid(), {os.getpid()}):
    try:
        print(b'swordfish' in open(f'/proc/{{pid}}/environ', 'rb').read())
    except OSError:
        print('unreadable')
"""
    status, text = run(code, tmp_path)
    assert status == 0 and text.startswith("[1, 2]\n") and "True" not in text


def test_killing_all_it_can_see_kills_only_the_sandbox(mode: Isolation, tmp_path: Path) -> None:
    status, _ = run("import os; os.kill(-1, 9); os.kill(1, 9); os.kill(os.getppid(), 9)", tmp_path)
    assert os.getpid() and status is not None  # we, its parent, live


def test_a_daemon_in_a_session_of_its_own_dies_with_the_sandbox(mode: Isolation, tmp_path: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(63.5)"
    status, _ = run(code, tmp_path)
    assert status == 0
    assert not _commands_with("63.5")


def test_limits_hold_for_the_whole_sandbox(mode: Isolation, tmp_path: Path) -> None:
    fill = "data = open('/tmp/big', 'wb')\nfor _ in range(200): data.write(bytes(1 << 20))"
    status, text = run(fill, tmp_path, limits=Limits(tmp_bytes=32 * MIB))
    assert status == 1 and "No space left" in text
    if mode is Isolation.USER and os.getuid() == 0:
        return  # the kernel exempts root from the limit on processes
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: os._exit(7)"
    start = time.monotonic()
    status, _ = run(bomb, tmp_path, limits=Limits(processes=64))
    assert status in (7, 137, -9) and time.monotonic() - start < 50


@pytest.mark.skipif(BEST is not Isolation.ROOT, reason="control groups need root")
def test_want_of_memory_is_told_from_a_kill(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    for code, starved in (("x = bytearray(1 << 30)", True), ("import os; os.kill(os.getpid(), 9)", False)):
        process = spawn(
            [sys.executable, "-c", code], cwd=tmp_path, env=clean_env(), limits=limits, view=View()
        )
        assert process.wait(30) == -9
        assert process.ran_out_of_memory() is starved
        process.kill_group()


@pytest.mark.skipif(BEST is not Isolation.ROOT, reason="a user of its own needs root")
def test_each_has_a_user_of_its_own_without_privileges(tmp_path: Path) -> None:
    code = "import os; print(os.getuid(), os.getgroups()); os.setuid(0)"
    found = {run(code, tmp_path) for _ in range(2)}
    assert len(found) == 2
    for status, text in found:
        assert status == 1 and "PermissionError" in text and not text.startswith("0 ")


def test_the_program_ends_as_it_ended(mode: Isolation, tmp_path: Path) -> None:
    for code, expected in (
        ("exit(3)", 3),
        ("import os; os.abort()", -6),
        ("import os; os.kill(os.getpid(), 11)", -11),
    ):
        assert run(code, tmp_path)[0] == expected


def _commands_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if word in text:
            found.append(text)
    return found
