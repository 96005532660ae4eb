"""Temporary folders of a killed process are swept; those of a live one stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cuda_agent.sandbox.scratch import Scratch, sweep

OWNER = """
import sys, time
from pathlib import Path
from cuda_agent.sandbox.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.path / "file").touch()
print(scratch.path, flush=True)
time.sleep(600)
"""


def aged(path: Path) -> None:
    os.utime(path, (0, 0))


def test_a_folder_goes_with_its_owner(tmp_path: Path) -> None:
    with Scratch(tmp_path) as path:
        (path / "file").touch()
        assert path.stat().st_mode & 0o077 == 0
        aged(path)
        sweep(tmp_path)
        assert path.is_dir()
    assert not path.exists()


def test_folders_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        aged(path)
        sweep(tmp_path)
        assert (path / "file").is_file()
    finally:
        owner.kill()
        owner.communicate()
    aged(path)
    sweep(tmp_path)
    assert not path.exists()


def test_a_sweep_leaves_what_is_new_or_not_ours(tmp_path: Path) -> None:
    new = tmp_path / "cuda-agent-scratch-new"
    new.mkdir()
    other = tmp_path / "cuda-agent-out"
    other.mkdir()
    aged(other)
    link = tmp_path / "cuda-agent-scratch-link"
    link.symlink_to(other, target_is_directory=True)
    os.utime(link, (0, 0), follow_symlinks=False)
    sweep(tmp_path)
    assert new.is_dir() and other.is_dir() and link.is_symlink()
