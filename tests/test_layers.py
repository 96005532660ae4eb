"""Imports point down (docs/architecture.md): read off the sources, late imports included."""

from __future__ import annotations

import ast
from pathlib import Path

import cuda_agent

ROOT = Path(cuda_agent.__file__).parent
# Lowest first. A longer name wins over its package's: the workspace's data lie below the judge, its
# service above.
LAYERS = (
    ("config", "errors", "result", "signature", "task", "trajectory"),
    ("backends", "examples", "pool.lease", "runtime", "sandbox", "tasks"),
    ("generation", "models", "skills"),
    ("workspace.layout", "workspace.light", "workspace.opening", "workspace.scaffold", "workspace.snapshot"),
    ("judge",),
    ("workspace",),
    ("pool", "serve"),
    ("agent",),
    ("runs",),
    ("api", "inspection"),
    ("evals", "rl", "synthesis"),
    ("cli",),
    ("__main__",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def rank_of(module: str) -> int:
    """Layer of a module by its dotted name inside the package."""
    parts = module.split(".")
    return next(RANKS[name] for n in (2, 1) if (name := ".".join(parts[:n])) in RANKS)


def imported(path: Path) -> set[str]:
    """Modules of ours that a source names in any import statement."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(named if node.module == "cuda_agent" else [node.module])
    return {name.removeprefix("cuda_agent.") for name in found if name.startswith("cuda_agent.")}


def test_imports_point_down() -> None:
    upward = []
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__" or relative.parts[:2] == ("workspace", "files"):
            continue
        upward += [f"{module} -> {name}" for name in imported(path) if rank_of(name) > rank_of(module)]
    assert upward == []
