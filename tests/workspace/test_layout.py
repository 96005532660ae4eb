"""Laying out a workspace and reading its task back."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from cuda_agent.config import Device, Precision, Track
from cuda_agent.errors import WorkspaceError
from cuda_agent.task import Task
from cuda_agent.workspace.layout import create, load_workspace_task, read_settings, write_fixed
from cuda_agent.workspace.scaffold import starter
from cuda_agent.workspace.snapshot import freeze

CODE = '''"""A task."""

import torch
from torch import nn

WIDTH = 8


class Block(nn.Module):
    def forward(self, x):
        return x + 1


@staticmethod
def helper(x):
    return x


class Model(nn.Module):
    """Reference."""

    def __init__(self, width: int = WIDTH, *, eps: float = 1e-5):
        super(Model, self).__init__()
        self.block = Block()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor, *more) -> torch.Tensor:
        return self.block(x) * self.weight


def get_inputs():
    return [torch.randn(4, WIDTH)]


def get_init_inputs():
    return [WIDTH]


if __name__ == "__main__":
    print("run")
'''


@pytest.fixture
def task() -> Task:
    return Task(code=CODE, name="blocky", search_path=("/some/where",))


def lay_out(folder: Path, task: Task, *, backend: str = "cpu", track: Track = Track.MATCHED) -> Path:
    create(folder, task, backend=backend, track=track, precision=Precision.DEFAULT)
    return folder


def test_public_layout(tmp_path: Path, task: Task) -> None:
    workspace = lay_out(tmp_path / "w", task)
    names = {p.relative_to(workspace).as_posix() for p in workspace.rglob("*") if p.is_file()}
    assert {
        "SKILL.md",
        "model.py",
        "model_new.py",
        "binding.cpp",
        "binding_registry.h",
        "utils/compile.sh",
        "utils/compile.py",
        "utils/verification.py",
        "utils/profiling.py",
    } <= names
    assert (workspace / "kernels").is_dir()
    assert (workspace / "model.py").read_text() == CODE
    assert not any("__pycache__" in name for name in names)


def test_task_comes_back_with_its_hash(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"tensors")
    code = CODE + "# weights\n"
    task = Task(code=code, name="blocky", assets={"weights.pt": weights}, search_path=("/some/where",))
    again = load_workspace_task(lay_out(tmp_path / "w", task))
    assert (again.hash, again.name, again.search_path) == (task.hash, "blocky", ("/some/where",))


def test_settings_round_trip_and_defaults(tmp_path: Path, task: Task) -> None:
    workspace = lay_out(tmp_path / "w", task, track=Track.PAPER)
    config = read_settings(workspace).judge_config()
    assert (config.device, config.track) == (Device.CPU, Track.PAPER)
    public = tmp_path / "public"
    public.mkdir()
    assert read_settings(public).judge_config().device is Device.AUTO
    settings = workspace / "utils" / "settings.json"
    settings.unlink()
    settings.write_text(json.dumps({"track": "fastest", "search_path": []}))
    with pytest.raises(WorkspaceError, match="cannot be read"):
        read_settings(workspace)


def test_refuses_a_folder_that_holds_something(tmp_path: Path, task: Task) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(WorkspaceError, match="not empty"):
        lay_out(tmp_path, task)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_fixed_files_are_restored_and_the_candidate_kept(tmp_path: Path, task: Task) -> None:
    workspace = lay_out(tmp_path / "w", task)
    before = (workspace / "binding.cpp").read_bytes()
    (workspace / "binding.cpp").unlink()
    (workspace / "binding.cpp").write_text("hacked")
    (workspace / "model_new.py").write_text("mine")
    write_fixed(workspace, task, backend="cpu", track=Track.MATCHED, precision=Precision.DEFAULT)
    assert (workspace / "binding.cpp").read_bytes() == before
    assert (workspace / "model_new.py").read_text() == "mine"


def test_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"no readable model\.py"):
        load_workspace_task(tmp_path)


def test_cuda_workspace_is_laid_out_without_a_gpu(tmp_path: Path, task: Task) -> None:
    skill = (lay_out(tmp_path / "w", task, backend="cuda") / "SKILL.md").read_text()
    assert "CUDA kernels" in skill and "@@" not in skill


def test_starter_has_the_references_constructor_and_an_open_forward() -> None:
    text = starter(CODE)
    tree = ast.parse(text)
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert set(classes) == {"Block", "ModelNew"} and functions == {"helper"}
    assert "__main__" not in text and "super(ModelNew, self)" in text
    methods = {n.name: n for n in classes["ModelNew"].body if isinstance(n, ast.FunctionDef)}
    assert ast.unparse(methods["__init__"].args) == "self, width: int=WIDTH, *, eps: float=1e-05"
    assert ast.unparse(methods["forward"].args) == "self, x: torch.Tensor, *more"
    assert isinstance(methods["forward"].body[0], ast.Raise)


def test_starters_state_dict_is_the_references(tmp_path: Path, task: Task) -> None:
    workspace = lay_out(tmp_path / "w", task)
    script = (
        "import model, model_new\n"
        "a, b = model.Model(8), model_new.ModelNew(8)\n"
        "b.load_state_dict(a.state_dict(), strict=True)\n"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=workspace, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", ["from other import Model", "class Model:\n    forward = None\n"])
def test_starter_for_a_source_without_a_plain_model(code: str) -> None:
    assert "class ModelNew(nn.Module)" in starter(code)


def test_a_fresh_workspace_freezes(tmp_path: Path, task: Task) -> None:
    assert list(freeze(lay_out(tmp_path / "w", task)).files) == ["model_new.py"]
