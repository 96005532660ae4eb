"""Load a candidate's ``model_new.py`` with the extension that was built for it.

Every extension is called ``cuda_extension``. Several live in one process because each is loaded from
its own path, and each ``model_new.py`` runs with an ``__import__`` of its own that answers
``import cuda_extension`` with the right one, at module level and inside functions alike;
``sys.modules["cuda_extension"]`` is never touched.
"""

from __future__ import annotations

import builtins
import copy
import functools
import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

EXTENSION = "cuda_extension"


@dataclass(frozen=True)
class NewModule:
    """Makes ``ModelNew`` instances.

    Attributes:
        source: the candidate's ``model_new.py``.
        library: the extension built from its kernels.
        arguments: of the constructor, as ``get_init_inputs()`` gives them.
    """

    source: Path
    library: Path
    arguments: Any = ()

    def __call__(self) -> Any:
        """A new instance, weights as its constructor makes them.

        Raises:
            ImportError: the library does not load.
        """
        return construct(_loaded(self.source, self.library).ModelNew, copy.deepcopy(self.arguments))


def construct(module_class: Any, arguments: Any) -> Any:
    """Build a module from what ``get_init_inputs()`` returned: a list, a dict by name, or both."""
    if isinstance(arguments, dict):
        return module_class(**arguments)
    if len(arguments) == 2 and isinstance(arguments[0], list) and isinstance(arguments[1], dict):
        return module_class(*arguments[0], **arguments[1])
    return module_class(*arguments)


@functools.cache
def _loaded(source: Path, library: Path) -> ModuleType:
    digest = hashlib.sha256(f"{source}\n{library}".encode()).hexdigest()[:12]
    return load_source(source, name=f"_cuda_agent_candidate_{digest}", extension=load_extension(library))


def load_extension(library: Path) -> ModuleType:
    """Load one built extension; the same path gives the same module.

    Raises:
        ImportError: the library does not load.
    """
    loader = ExtensionFileLoader(EXTENSION, str(library))
    spec = importlib.util.spec_from_file_location(EXTENSION, library, loader=loader)
    if spec is None:
        raise ImportError(f"{library} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_source(path: Path, *, name: str, extension: ModuleType | None = None) -> ModuleType:
    """Run a Python file as the module ``name``; ``extension`` answers its ``import cuda_extension``."""
    module = ModuleType(name)
    module.__file__ = str(path)
    if extension is not None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(extension)}
    # Registered so that inspect, pickle and dataclasses find the classes' home.
    sys.modules[name] = module
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def _importer(extension: ModuleType) -> Any:
    def import_module(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == EXTENSION:
            return extension
        return builtins.__import__(name, *args, **kwargs)

    return import_module
