"""The tools as a policy meets them: confinement, reading before writing, atomic edits, useful errors."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent.agent.tools import Toolbox
from cuda_agent.errors import InfrastructureError
from cuda_agent.trajectory import Observation, ToolCall

Call = Callable[..., Observation]


def test_the_tools_are_those_of_the_paper_and_none_reaches_the_network(tools: Toolbox) -> None:
    names = [spec.name for spec in tools.specs()]
    assert names == (
        ["Bash", "BashOutput", "KillBash", "Read", "Write", "Edit", "MultiEdit", "Glob", "Grep", "TodoWrite"]
    )
    assert all(spec.description and spec.parameters["type"] == "object" for spec in tools.specs())
    described = [p.get("description") for s in tools.specs() for p in s.parameters["properties"].values()]
    assert all(described)


def test_read_numbers_lines_and_pages(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("".join(f"line {n}\n" for n in range(1, 8)))
    assert call("Read", file_path="f", offset=3, limit=2).text == (
        "     3\tline 3\n     4\tline 4\n[3 more lines; read on with offset 5]"
    )
    assert call("Read", file_path=str(workspace / "f"), offset=7).text == "     7\tline 7"
    assert call("Read", file_path="f", offset=9).is_error


def test_read_of_binary_special_missing_and_large_files(call: Call, workspace: Path) -> None:
    (workspace / "b").write_bytes(b"\x00\xff\x1b[31mred\x07")
    assert call("Read", file_path="b").text == "     1\t\\x00\\xffred\\x07"
    os.mkfifo(workspace / "pipe")
    with (workspace / "large").open("wb") as file:
        file.truncate(2**30)
    for name, words in {
        "pipe": "not a regular file",
        "large": "too large",
        "no": "does not exist",
        ".": "folder",
    }.items():
        answer = call("Read", file_path=name)
        assert answer.is_error and words in answer.text


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "link", "folder/outside", "loop", "a\0b", "x" * 300]
)
def test_file_tools_stay_inside_the_workspace(call: Call, workspace: Path, name: str) -> None:
    outside = workspace.parent / "outside"
    outside.write_text("untouched")
    (workspace / "link").symlink_to(outside)
    (workspace / "folder").symlink_to(workspace.parent)
    (workspace / "loop").symlink_to(workspace / "loop")
    for tool, more in {
        "Read": {},
        "Write": {"content": "x"},
        "Edit": {"old_string": "untouched", "new_string": "x"},
        "MultiEdit": {"edits": [{"old_string": "untouched", "new_string": "x"}]},
    }.items():
        assert call(tool, file_path=name, **more).is_error, tool
    assert "untouched" not in call("Grep", pattern="untouched", path=name).text
    assert outside.read_text() == "untouched"
    assert call("Glob", pattern="folder/*").text == "no file matches folder/*"
    assert call("Glob", pattern="../*").is_error and call("Glob", pattern="/etc/*").is_error


def test_a_link_inside_the_workspace_is_followed(call: Call, workspace: Path) -> None:
    (workspace / "real").write_text("text")
    (workspace / "link").symlink_to("real")
    assert call("Read", file_path="link").text.endswith("text")
    assert not call("Write", file_path="link", content="new").is_error
    assert (workspace / "real").read_text() == "new" and (workspace / "link").is_symlink()


def test_write_refuses_what_was_not_read(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("old")
    refused = call("Write", file_path="f", content="new")
    assert refused.is_error and "Read it before" in refused.text and (workspace / "f").read_text() == "old"
    call("Read", file_path="f")
    assert not call("Write", file_path="f", content="new").is_error
    assert not call("Write", file_path="f", content="newer").is_error, "what it wrote itself it knows"
    call("Bash", command="echo changed > f")
    stale = call("Write", file_path="f", content="newest")
    assert stale.is_error and "changed since" in stale.text and (workspace / "f").read_text() == "changed\n"


def test_write_makes_folders_keeps_the_mode_and_respects_read_only(call: Call, workspace: Path) -> None:
    assert (
        call("Write", file_path="kernels/deep/k.cu", content="a\nb").text
        == "created kernels/deep/k.cu (2 lines)"
    )
    script = workspace / "s.sh"
    script.write_text("x")
    script.chmod(0o755)
    call("Read", file_path="s.sh")
    call("Write", file_path="s.sh", content="y")
    assert script.stat().st_mode & 0o777 == 0o755
    script.chmod(0o444)
    for answer in (
        call("Write", file_path="s.sh", content="z"),
        call("Edit", file_path="s.sh", old_string="y", new_string="z"),
    ):
        assert answer.is_error and "read-only" in answer.text
    assert script.read_text() == "y" and sorted(p.name for p in workspace.iterdir()) == ["kernels", "s.sh"]


def test_edit_needs_one_match_or_replace_all(call: Call, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"a = 1\r\nb = 1\r\n")
    several = call("Edit", file_path="f", old_string="= 1", new_string="= 2")
    assert several.is_error and "occurs 2 times (lines 1, 2)" in several.text
    assert not call("Edit", file_path="f", old_string="a = 1", new_string="a = 3").is_error
    assert not call("Edit", file_path="f", old_string="= ", new_string="=", replace_all=True).is_error
    assert (workspace / "f").read_bytes() == b"a =3\r\nb =1\r\n", "line ends are kept"


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("     1\tint main() {", "leave out the line numbers"),
        ("int  main() {", "blanks or line ends differ"),
        ("int mian() {", "closest line is 1: int main() {"),
        ("", "use Write"),
        ("int main() {", "are the same"),
    ],
)
def test_edit_says_why_nothing_was_found(call: Call, workspace: Path, old: str, hint: str) -> None:
    (workspace / "f").write_text("int main() {\n}\n")
    answer = call("Edit", file_path="f", old_string=old, new_string="int main() {")
    assert answer.is_error and hint in answer.text


def test_multi_edit_makes_all_edits_or_none(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("one two three")
    good = {"old_string": "one", "new_string": "1"}
    failed = call("MultiEdit", file_path="f", edits=[good, {"old_string": "four", "new_string": "4"}])
    assert failed.is_error and "edit 2 of 2" in failed.text and "no edit was applied" in failed.text
    assert (workspace / "f").read_text() == "one two three"
    # Each edit sees what the one before left.
    assert not call(
        "MultiEdit", file_path="f", edits=[good, {"old_string": "1 two", "new_string": "12"}]
    ).is_error
    assert (workspace / "f").read_text() == "12 three"
    assert call("MultiEdit", file_path="f", edits=[]).is_error


def test_glob_newest_first_with_braces(call: Call, workspace: Path) -> None:
    (workspace / "kernels").mkdir()
    for age, name in enumerate(["a.cu", "b.cpp", "c.txt"]):
        path = workspace / "kernels" / name
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    os.utime(workspace / "kernels" / "b.cpp", (2e9, 2e9))
    assert call("Glob", pattern="**/*.{cu,cpp}").text == "kernels/b.cpp\nkernels/a.cu"
    assert call("Glob", pattern="*.cu", path="kernels").text == "kernels/a.cu"
    assert call("Glob", pattern="**bad").is_error


SEARCHES = [
    ({"pattern": "scale"}, "k/a.cu:1:float scale;\nk/a.cu:3:int SCALE, scale;\nm.py:1:scale = 1"),
    (
        {"pattern": "scale", "ignore_case": True, "path": "k"},
        "k/a.cu:1:float scale;\nk/a.cu:3:int SCALE, scale;",
    ),
    ({"pattern": "SCALE", "context": 1}, "k/a.cu-2-x\nk/a.cu:3:int SCALE, scale;\nk/a.cu-4-y"),
    ({"pattern": "scale", "output_mode": "files_with_matches"}, "k/a.cu\nm.py"),
    ({"pattern": "scale", "output_mode": "count"}, "k/a.cu:2\nm.py:1"),
    ({"pattern": "scale", "glob": "*.{py,txt}"}, "m.py:1:scale = 1"),
    ({"pattern": "scale;.x", "multiline": True}, "k/a.cu:1:float scale;\nk/a.cu:2:x"),
    ({"pattern": "^x$", "head_limit": 1}, "k/a.cu:2:x"),
    ({"pattern": "nowhere"}, "no match"),
]


@pytest.mark.parametrize("use_ripgrep", [False, True])
def test_grep_alike_with_and_without_ripgrep(workspace: Path, use_ripgrep: bool) -> None:
    if use_ripgrep and not shutil.which("rg"):
        pytest.skip("ripgrep is not installed")
    (workspace / "k").mkdir()
    (workspace / "k" / "a.cu").write_text("float scale;\nx\nint SCALE, scale;\ny\n")
    (workspace / "m.py").write_text("scale = 1\n")
    (workspace / "binary").write_bytes(b"scale\0scale")
    (workspace / ".hidden").write_text("scale")
    (workspace / ".gitignore").write_text("*\n")
    with Toolbox(workspace, {}, use_ripgrep=use_ripgrep) as tools:
        for arguments, expected in SEARCHES:
            assert tools.call(ToolCall("c", "Grep", arguments)).text == expected, arguments
        assert tools.call(ToolCall("c", "Grep", {"pattern": "("})).is_error
        assert tools.call(ToolCall("c", "Grep", {"pattern": "x", "path": "no"})).is_error


def test_a_pattern_that_takes_for_ever_is_stopped(workspace: Path) -> None:
    from cuda_agent.agent.paths import Confined, ToolError
    from cuda_agent.agent.search import SearchTools

    (workspace / "f").write_text("a" * 40 + "b\n")
    with pytest.raises(ToolError, match="took more than 1 s"):
        SearchTools(Confined(workspace), limit_s=1.0).grep("(a+)+$")


def test_background_commands(call: Call) -> None:
    call("Bash", command="export A=carried; mkdir d; cd d")
    assert call("Bash", command="echo $A; basename $PWD; sleep 300", run_in_background=True).text.endswith(
        "bash_1"
    )
    deadline = time.monotonic() + 10
    seen = ""
    while not {"carried", "d", "[running]"} <= set(seen.split()) and time.monotonic() < deadline:
        seen += call("BashOutput", bash_id="bash_1").text + "\n"
    assert time.monotonic() < deadline
    assert call("BashOutput", bash_id="bash_1").text == "[running, no new output]"
    assert call("KillBash", bash_id="bash_1").text == "bash_1: killed"
    assert call("BashOutput", bash_id="bash_1").text == "[killed, no new output]"
    assert call("Bash", command="echo last; exit 4", run_in_background=True).text.endswith("bash_2")
    while "exited" not in (seen := call("BashOutput", bash_id="bash_2").text) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen.endswith("[exited with status 4]") or seen == "[exited with status 4, no new output]"
    unknown = call("KillBash", bash_id="bash_9")
    assert unknown.is_error and "bash_1, bash_2" in unknown.text


def test_close_ends_background_commands_and_may_run_twice(workspace: Path) -> None:
    tools = Toolbox(workspace, {})
    tools.call(ToolCall("c", "Bash", {"command": "echo $$ > pid; yes", "run_in_background": True}))
    deadline = time.monotonic() + 10
    while not (workspace / "pid").exists() or not (workspace / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((workspace / "pid").read_text())
    threads = threading.active_count()
    tools.close()
    tools.close()
    assert not Path(f"/proc/{pid}/exe").exists() and threading.active_count() < threads


def test_bash_answers(call: Call) -> None:
    assert call("Bash", command="true").text == "(no output)"
    failed = call("Bash", command="echo words; exit 1 2>/dev/null | false")
    assert failed.is_error and failed.text == "words\n[exit status 1]"
    late = call("Bash", command="sleep 60", timeout_s=0.5)
    assert late.is_error and "timed out" in late.text and "restarted" in late.text
    assert call("Bash", command="a\0b").is_error


def test_the_episode_limits_a_command(tools: Toolbox) -> None:
    started = time.monotonic()
    answer = tools.call(ToolCall("c", "Bash", {"command": "sleep 60"}), limit_s=0.5)
    assert answer.is_error and time.monotonic() - started < 5 and answer.seconds >= 0.5


def test_output_is_capped_with_head_and_tail(workspace: Path) -> None:
    with Toolbox(workspace, {}, 1000) as tools:
        text = tools.call(ToolCall("c", "Bash", {"command": "seq 100000"})).text
    assert len(text) < 1100 and text.startswith("1\n2\n") and text.endswith("\n100000") and "left out" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="the network is cut by a namespace, which needs root")
def test_the_shell_has_no_network(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        for background in (False, True):
            call("Bash", command=f'python3 -c "{code}" && touch reached', run_in_background=background)
        time.sleep(0.3)
        assert call("Bash", command="ls").text == "(no output)"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("bash", {"command": "ls"}, "Did you mean Bash?"),
        ("WebSearch", {}, "Tools: Bash, BashOutput"),
        ("Bash", {"cmd": "ls"}, "argument command is missing; unknown argument cmd (did you mean command?)"),
        ("Bash", {"command": ["ls"]}, "command must be a string"),
        ("Read", {"file_path": "f", "offset": "two"}, "offset must be an integer"),
        ("Grep", {"pattern": "x", "output_mode": "all"}, '"files_with_matches" | "content" | "count"'),
        (
            "MultiEdit",
            {"file_path": "f", "edits": [{"old_string": "a"}]},
            "argument edits[0].new_string is missing",
        ),
    ],
)
def test_malformed_calls_get_a_useful_answer(
    tools: Toolbox, name: str, arguments: dict[str, object], words: str
) -> None:
    call = ToolCall("c", name, arguments)
    assert words in tools.check(call) and tools.call(call).text == tools.check(call)


def test_todo_list(call: Call) -> None:
    todos = [{"content": "plan", "status": "completed"}, {"content": "write", "status": "pending"}]
    assert call("TodoWrite", todos=todos).text == "[x] plan\n[ ] write"


def test_no_workspace_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        Toolbox(tmp_path / "nowhere", {})
