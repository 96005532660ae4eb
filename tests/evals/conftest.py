"""Real parts that several tests of evaluations use: tasks, hand-written kernels, the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

TINY = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + {n}


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""


class Command:
    """Runs ``cuda-agent`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cuda_agent", *argv],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *argv: str, code: int = 0, **options: Any) -> tuple[str, str]:
        """Run to the end; stdout and stderr."""
        process = self.start(*argv, **options)
        out, err = process.communicate(timeout=500)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out, err


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def tiny_set(tmp_path: Path) -> Path:
    """Two tasks that are quickly checked."""
    folder = tmp_path / "set" / "level1"
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"{number}_Add.py").write_text(TINY.format(n=number))
    return tmp_path / "set"
