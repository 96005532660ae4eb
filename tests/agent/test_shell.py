"""The persistent shell survives what commands do to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.agent.shell import Shell
from cuda_agent.errors import InfrastructureError
from cuda_agent.sandbox.isolation import Isolation, isolation_as_ourselves
from cuda_agent.sandbox.process import clean_env


@pytest.fixture
def shell(workspace: Path) -> Iterator[Shell]:
    shell = Shell(workspace, clean_env())
    yield shell
    shell.close()


def run(shell: Shell, command: str, limit_s: float = 10.0) -> str:
    return shell.run(command, limit_s=limit_s).output


def running(workspace: Path, word: str = "") -> list[str]:
    """Living processes that were started in the workspace (their ids inside a sandbox are not ours)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            started_here = f"PWD={workspace}\0".encode() in (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if started_here and word in command:
            found.append(command)
    return found


def test_directory_variables_and_functions_survive(shell: Shell) -> None:
    shell.run("mkdir sub; cd sub; x='a b'; declare -A m=([k]=v); greet() { echo hello $1; }", limit_s=10)
    assert run(shell, 'basename "$PWD"; echo "$x" ${m[k]}; greet you') == "sub\na b v\nhello you\n"


def test_status_and_order_of_both_streams(shell: Shell) -> None:
    result = shell.run("echo one; echo two >&2; echo three; (exit 7)", limit_s=10)
    assert (result.output, result.exit_code, result.note) == ("one\ntwo\nthree\n", 7, "")


@pytest.mark.parametrize(
    "command", ["echo 'unbalanced", "if true", "cat <<X", "break", "return 3", ")", "trap"]
)
def test_odd_commands_leave_the_shell_usable(shell: Shell, command: str) -> None:
    run(shell, "x=kept")
    shell.run(command, limit_s=10)
    assert run(shell, "echo $x") == "kept\n"


def test_a_long_command_passes_whole(shell: Shell) -> None:
    text = "".join(f"line {n} 'quote\" $x `y`\n" for n in range(20_000))
    assert run(shell, f"cat > big <<'END'\n{text}END\nwc -c < big").strip() == str(len(text))


def test_stdin_is_empty(shell: Shell) -> None:
    assert run(shell, "cat; read line; echo read: $?; python3 -c 'input()' 2>&1 | tail -1") == (
        "read: 1\nEOFError: EOF when reading a line\n"
    )


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo bye; exit 3", "bye\n", 3),
        ("exec echo gone", "gone\n", 0),
        ("kill -9 $$", "", -9),
        ("set -e; false", "", 1),
    ],
)
def test_a_killed_shell_starts_anew_and_says_so(shell: Shell, command: str, output: str, status: int) -> None:
    run(shell, "x=lost; cd /")
    result = shell.run(command, limit_s=10)
    assert (result.output, result.exit_code) == (output, status)
    assert f"exited with status {status}" in result.note and "lost" in result.note
    assert run(shell, 'echo "[$x]"; basename "$PWD"') == "[]\nworkspace\n"


def test_time_out_kills_the_group_and_children_in_sessions_of_their_own(
    shell: Shell, workspace: Path
) -> None:
    started = time.monotonic()
    command = "setsid sleep 300 & sleep 300 & echo begun; sleep 300"
    result = shell.run(command, limit_s=1.0)
    assert time.monotonic() - started < 5
    assert result.output == "begun\n" and result.exit_code is None and "timed out after 1 s" in result.note
    assert not running(workspace, "sleep 300")
    assert run(shell, "echo fine") == "fine\n"


def test_endless_output_is_stopped_with_bounded_memory(shell: Shell) -> None:
    result = shell.run("echo first; yes", limit_s=30)
    assert "stopped after 64 MiB" in result.note
    assert result.output.startswith("first\ny\n") and "bytes left out" in result.output
    assert len(result.output) < 400_000


def test_background_children_do_not_hold_the_command(shell: Shell) -> None:
    started = time.monotonic()
    assert run(shell, "sleep 300 & yes > /dev/null & echo back") == "back\n"
    assert time.monotonic() - started < 5
    assert run(shell, "jobs | wc -l").strip() == "2"


def test_close_kills_everything_and_may_run_twice(shell: Shell, workspace: Path) -> None:
    run(shell, "sleep 300 & setsid nohup sleep 300 >/dev/null 2>&1 & sleep 0.3")
    assert len(running(workspace, "sleep 300")) == 2, "the premise: both run"
    shell.close()
    shell.close()
    assert not running(workspace)


def test_secrets_and_proxies_stay_out(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "CUDA_AGENT_API_KEY",
        "HTTPS_PROXY",
        "https_proxy",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.setenv(name, "secret-value")
    shell = Shell(workspace, clean_env())
    assert "PATH=" in run(shell, "env") and "secret-value" not in run(shell, "env")
    shell.close()


def test_environment_has_what_was_exported(shell: Shell) -> None:
    run(shell, "mkdir d; cd d; export A='two\nlines'; B=private")
    env = shell.environment()
    assert env["A"] == "two\nlines" and env["PWD"].endswith("/d") and "B" not in env


def test_ctrl_c_leaves_no_process_and_a_usable_shell(workspace: Path) -> None:
    script = f"""
import signal, threading, os
from pathlib import Path
from cuda_agent.agent.shell import Shell
from cuda_agent.sandbox.process import clean_env
shell = Shell(Path({str(workspace)!r}), clean_env())
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    shell.run("sleep 300 & wait", limit_s=60)
except KeyboardInterrupt:
    print("interrupted", shell.run("echo alive", limit_s=5).output)
shell.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["interrupted", "alive"], done.stderr
    assert not running(workspace)


def test_a_workspace_that_is_gone_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot start a shell"):
        Shell(tmp_path / "nowhere", clean_env()).run("true", limit_s=5)


def test_no_bash_is_an_infrastructure_error(workspace: Path) -> None:
    with pytest.raises(InfrastructureError, match="Install bash"):
        Shell(workspace, {"PATH": str(workspace)}).run("true", limit_s=5)


def test_the_shell_dies_with_its_parent(workspace: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from cuda_agent.agent.shell import Shell
from cuda_agent.sandbox.process import clean_env
Shell(Path({str(workspace)!r}), clean_env()).run("sleep 300 &", limit_s=5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while running(workspace) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(workspace)


@pytest.mark.skipif(
    isolation_as_ourselves() is Isolation.NONE, reason="this host forbids namespaces: nothing is hidden here"
)
def test_the_host_is_hidden_and_the_workspace_is_not(shell: Shell, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "harness").write_text("x")
    (workspace / "from_outside").write_text("x")
    assert run(shell, f"cat {tmp_path}/harness").endswith("No such file or directory\n")
    assert "denied" in run(shell, "cat /proc/1/environ") or os.getuid() != 0
    assert run(shell, "ls /dev | grep -c nvidia") == "0\n"
    assert (
        run(shell, "cat /etc/shadow 2>/dev/null; mount -o remount,rw,bind /usr 2>/dev/null || echo no")
        == "no\n"
    )
    assert run(shell, "touch /usr/x /etc/x 2>&1 | grep -c Read-only") == "2\n"
    assert run(shell, "echo more >> from_outside && echo made > inside && ls") == "from_outside\ninside\n"
    assert (workspace / "inside").stat().st_uid == os.getuid()
