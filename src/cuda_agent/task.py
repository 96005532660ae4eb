"""A task: one reference module as Python source, in KernelBench's form.

The source defines ``Model`` (an ``nn.Module``), ``get_inputs()`` and ``get_init_inputs()``. A source
that names several input shapes also defines ``CASE_WEIGHTS`` (positive numbers, one for each case)
and then ``get_inputs(case)`` takes the case's index, default 0.

Nothing here runs the source: that happens in a disposable process (cuda_agent.judge).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.errors import TaskError, UsageError

REQUIRED_NAMES = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Task:
    """One reference module.

    Attributes:
        code: Python source.
        name: short name for people.
        assets: files the code reads from beside itself, by name (weights of an exported module).
        search_path: folders to put on ``sys.path`` for the code's own imports (a user's package).
        ops: operator names, where known.
        data_source: origin, as in the public data set (``torch#2``, ``transformers``, ...).
    """

    code: str
    name: str = "task"
    assets: Mapping[str, Path] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    data_source: str = ""

    @property
    def hash(self) -> str:
        """SHA-256 over the code and the assets' bytes, 16 hex digits."""
        digest = hashlib.sha256(self.code.encode())
        for name in sorted(self.assets):
            digest.update(name.encode())
            digest.update(self.assets[name].read_bytes())
        return digest.hexdigest()[:16]

    def check_names(self) -> None:
        """Check that the source parses and defines the required names, without running it.

        Raises:
            TaskError: a syntax error, or a name is missing.
        """
        try:
            tree = ast.parse(self.code)
        except SyntaxError as error:
            where = f"line {error.lineno}: " if error.lineno else ""
            raise TaskError(f"task {self.name}: {where}{error.msg}", "Correct the Python source.") from None
        defined = _defined_names(tree)
        missing = [name for name in REQUIRED_NAMES if name not in defined]
        if missing:
            raise TaskError(
                f"task {self.name} defines no {', '.join(missing)}",
                "A task file needs class Model, get_inputs() and get_init_inputs().",
            )


def load_task(path: Path) -> Task:
    """Read a task file.

    Raises:
        UsageError: no such file, or not text.
        TaskError: see :meth:`Task.check_names`.
    """
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Name a Python file.") from None
    assets = weights_beside(path.parent, code)
    task = Task(code=code, name=path.stem, assets=assets, search_path=(str(path.parent.resolve()),))
    task.check_names()
    return task


def weights_beside(folder: Path, code: str) -> dict[str, Path]:
    """Files ``weights*.pt`` of a folder, by name, where the source speaks of weights."""
    return {p.name: p for p in sorted(folder.glob("weights*.pt"))} if "weights" in code else {}


def _defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update(a.asname or a.name for a in node.names)
        elif isinstance(node, ast.If | ast.Try):
            names |= _defined_names(ast.Module(body=node.body, type_ignores=[]))
    return names
