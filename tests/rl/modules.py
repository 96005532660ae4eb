"""The modules of cuda_agent.rl as one namespace: the real ones, or a copy with one line changed."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import cuda_agent.rl

NAMES = ("rollouts", "advantages", "statistics", "losses", "ppo", "batches")


def load(package: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: importlib.import_module(f"{package}.{name}") for name in NAMES})


REAL = load("cuda_agent.rl")


@contextmanager
def mutant(folder: Path, module: str, old: str, new: str) -> Iterator[SimpleNamespace]:
    """A copy of the package in ``folder`` where ``old``, which must occur once in ``module``, is ``new``."""
    package = "mutant_rl"
    shutil.copytree(
        Path(cuda_agent.rl.__file__).parent, folder / package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in (folder / package).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.stem == module:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {module}"
            text = text.replace(old, new)
        path.write_text(text.replace("cuda_agent.rl", package), encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield load(package)
    finally:
        sys.path.remove(str(folder))
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            del sys.modules[name]
