"""Default configurations of the installed transformers: made from their classes, nothing is fetched."""

from __future__ import annotations

import ast
import contextlib
import importlib
import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from cuda_agent.synthesis.mine.modelling.names import parameters
from cuda_agent.synthesis.mine.modelling.values import is_config
from cuda_agent.synthesis.mine.modelling.walk import SourceFile, method

MAX_TRIED = 5


def configurations(file: SourceFile, node: ast.ClassDef) -> Iterator[Any]:
    """Default configurations that a class may be meant for, likeliest first; ``None`` where it takes none."""
    init = method(node, "__init__")
    taken = [p for p, _ in parameters(init)] if init is not None else []
    wanted = [p for p in taken if "config" in p.arg.lower()]
    if not wanted:
        yield None
        return
    annotation = wanted[0].annotation
    named = re.findall(r"\w+Config", ast.unparse(annotation)) if annotation is not None else []
    found: dict[int, Any] = {}
    for name in [*named, *(n for n in file.imports if n.endswith("Config"))]:
        for config in _with_parts(_default(file, name)):
            found.setdefault(id(config), config)
    yield from list(found.values())[:MAX_TRIED]


def _default(file: SourceFile, name: str) -> Any:
    return _made(file.imported(name)) if name in file.imports else None


@lru_cache(maxsize=1024)
def _made(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    try:
        with _offline():
            return getattr(importlib.import_module(module), name)()
    except Exception:  # noqa: BLE001  a configuration may need what is not installed, or arguments
        return None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Nothing is fetched, and nothing is said, while a configuration is made."""
    from huggingface_hub import constants

    log = logging.getLogger("transformers")
    before, level = constants.HF_HUB_OFFLINE, log.level
    constants.HF_HUB_OFFLINE = True
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        log.setLevel(level)


def _with_parts(config: Any) -> list[Any]:
    if config is None:
        return []
    parts = [v for v in vars(config).values() if is_config(v)]
    return [config, *parts]
