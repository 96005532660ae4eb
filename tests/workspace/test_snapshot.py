"""Freezing a candidate: what is taken, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.errors import WorkspaceError
from cuda_agent.workspace import snapshot as snapshots
from cuda_agent.workspace.snapshot import Snapshot, freeze


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "kernels" / "deep").mkdir(parents=True)
    (tmp_path / "model_new.py").write_text("class ModelNew: ...\n")
    (tmp_path / "kernels" / "a.cpp").write_text("int a;\n")
    (tmp_path / "kernels" / "deep" / "b.cuh").write_text("int b;\n")
    return tmp_path


def test_takes_the_candidate_and_nothing_else(workspace: Path) -> None:
    for name in ("model.py", "kernels/notes.md", "kernels/lib.so", "kernels/.hidden.cpp", "extra.cpp"):
        (workspace / name).write_text("x")
    frozen = freeze(workspace)
    assert sorted(frozen.files) == ["kernels/a.cpp", "kernels/deep/b.cuh", "model_new.py"]
    assert frozen.files["kernels/a.cpp"] == b"int a;\n"


def test_hash_tells_names_and_contents_apart(workspace: Path) -> None:
    base = freeze(workspace)
    assert base.hash == freeze(workspace).hash and len(base.hash) == 16
    moved = Snapshot({"kernels/a.cp": b"p", "model_new.py": b""})
    assert moved.hash != Snapshot({"kernels/a.cpp": b"", "model_new.py": b""}).hash
    (workspace / "kernels" / "a.cpp").write_text("int c;\n")
    assert freeze(workspace).hash != base.hash


def test_written_out_it_freezes_to_the_same(workspace: Path, tmp_path: Path) -> None:
    frozen = freeze(workspace)
    frozen.write(tmp_path / "copy")
    assert freeze(tmp_path / "copy") == frozen


@pytest.mark.parametrize("name", ["model_new.py", "kernels/a.cpp", "kernels/deep", "kernels"])
def test_links_are_refused(workspace: Path, name: str) -> None:
    path = workspace / name
    target = workspace / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(WorkspaceError, match="is a link"):
        freeze(workspace)


def test_dangling_link_is_refused(workspace: Path) -> None:
    (workspace / "kernels" / "x.cu").symlink_to(workspace / "nowhere")
    with pytest.raises(WorkspaceError, match=r"kernels/x\.cu is a link"):
        freeze(workspace)


def test_special_files_are_refused_without_hanging(workspace: Path) -> None:
    os.mkfifo(workspace / "kernels" / "pipe.cpp")
    with pytest.raises(WorkspaceError, match="not a regular file"):
        freeze(workspace)


def test_sizes_are_capped(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "kernels" / "big.h").write_bytes(b"x" * (snapshots.MAX_FILE_BYTES + 1))
    with pytest.raises(WorkspaceError, match=r"kernels/big\.h is larger"):
        freeze(workspace)
    (workspace / "kernels" / "big.h").write_bytes(b"x" * 1000)
    monkeypatch.setattr(snapshots, "MAX_TOTAL_BYTES", 900)
    with pytest.raises(WorkspaceError, match="more than"):
        freeze(workspace)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"no model_new\.py"):
        freeze(tmp_path)
    with pytest.raises(WorkspaceError, match="no workspace"):
        freeze(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["../x.cpp", "/etc/x.cpp", "kernels/../../x.cpp", "binding.cpp", "kernels/x.so", "kernels"]
)
def test_a_snapshot_writes_only_a_candidates_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkspaceError, match="no file of a candidate"):
        Snapshot({name: b""}).write(tmp_path / "inner")
    assert not (tmp_path / "x.cpp").exists()
