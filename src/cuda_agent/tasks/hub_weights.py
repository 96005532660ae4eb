"""Weights that a task loads from the Hugging Face hub: which, and whether this machine has them.

KernelBench's level 4 wraps pretrained models. Judging runs without network, so that a task whose weights
are not in the cache cannot run. Read off the source; nothing of it runs here.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "*.bin.index.json")


def missing_weights(code: str) -> list[str]:
    """Hub names that ``from_pretrained`` loads in ``code`` and whose weights are not on this machine."""
    if "from_pretrained" not in code:
        return []
    return [name for name in _names(ast.parse(code)) if not _is_here(name)]


def hub_cache() -> Path:
    """The hub's cache: ``$HF_HUB_CACHE``, else ``$HF_HOME/hub``, else below the user's cache."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder)
    if home := os.environ.get("HF_HOME"):
        return Path(home) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "huggingface" / "hub"


def _names(tree: ast.Module) -> list[str]:
    """Arguments of ``from_pretrained``, constants followed through names; first seen first."""
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, None] = {}
    for argument in _arguments(tree):
        key = argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
        value = argument.value if isinstance(argument, ast.Constant) else constants.get(key)
        if isinstance(value, str):
            found[value] = None
    return list(found)


def _arguments(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "from_pretrained" and node.args:
            yield node.args[0]


def _is_here(name: str) -> bool:
    folders = [Path(name)]
    snapshots = hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots"
    if snapshots.is_dir():
        folders += sorted(snapshots.iterdir())
    return any(next(folder.glob(pattern), None) for folder in folders for pattern in _WEIGHTS)
