"""What a sandboxed process sees of this machine's files beside the system's own folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_agent


@dataclass(frozen=True)
class View:
    """Paths shown at their own places; everything else of the host is absent.

    Attributes:
        write: folders that the process may change (given to its user).
        owned: private folders shown read-only (given to its user, so that it can enter them).
        read: files and folders shown read-only.
        gpu: the device nodes of the GPU too.
        own_user: run as a user of its own where that can be; else files stay ours, which is for folders
            that we write too.
        user: name of a user shared by all sandboxes that name it; else each has a user of its own.
    """

    write: tuple[Path, ...] = ()
    owned: tuple[Path, ...] = ()
    read: tuple[Path, ...] = ()
    gpu: bool = False
    own_user: bool = True
    user: str = ""

    def may_write(self, folder: Path) -> bool:
        """Whether a folder of the host is one that the program may change."""
        return any(folder.is_relative_to(path) for path in self.write)

    def spec(self, env: Mapping[str, str]) -> dict[str, Any]:
        """As the launcher reads it."""
        read = {*self.read, *_runtime_paths(), *_search_paths(env)}
        return {
            "write": sorted(_absolute(self.write)),
            "owned": sorted(_absolute(self.owned)),
            "read": sorted(_absolute(read)),
            "gpu": self.gpu,
            "user": self.user,
        }


def _absolute(paths: tuple[Path, ...] | set[Path]) -> set[str]:
    """Both spellings of a path behind links: programs may use either."""
    return {text for path in paths for text in (os.path.abspath(path), os.path.realpath(path))}  # noqa: PTH100


def _runtime_paths() -> set[Path]:
    """The interpreter, its packages, and this package."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(cuda_agent.__file__).parent}
    found |= {Path(path) for path in sys.path if path and _is_packages(Path(path))}
    found |= {Path(os.environ["PYENV_ROOT"])} if "PYENV_ROOT" in os.environ else set()  # behind its shims
    return {path for path in found if not _is_too_wide(path)}


def _is_packages(path: Path) -> bool:
    return path.name in ("site-packages", "dist-packages") or path.suffix == ".zip"


def _search_paths(env: Mapping[str, str]) -> set[Path]:
    """Folders of programs and libraries, the toolkit's too."""
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH")
    found = {Path(item) for name in names for item in env.get(name, "").split(":") if item}
    return {path for path in found if path.is_absolute() and not _is_too_wide(path)}


def _is_too_wide(path: Path) -> bool:
    """Showing it would show a home or the whole machine."""
    resolved = path.resolve()
    return resolved in (Path("/"), Path("/tmp")) or Path.home().resolve().is_relative_to(resolved)
