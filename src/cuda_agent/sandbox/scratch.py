"""Temporary folders that do not outlive their owner, even one that is killed.

Each folder is locked by the process that made it, and the kernel frees the lock when that process dies,
whatever way. The first folder a process makes sweeps those that a killed one left behind.

Does not cover: folders of other users.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "cuda-agent-scratch-"
_MIN_AGE_S = 60.0  # between making a folder and locking it


class Scratch:
    """A private folder, removed by :meth:`close`; a context manager that gives its path.

    Args:
        parent: where to make it; the system's temporary folder when left out.

    Raises:
        OSError: no such parent, or no space.
    """

    def __init__(self, parent: Path | None = None) -> None:
        root = parent or Path(tempfile.gettempdir())
        _sweep_once(root)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        self._fd = _lock(self.path)

    def close(self) -> None:
        """Remove the folder; may run twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep(root: Path) -> None:
    """Remove the folders below ``root`` whose owner is gone."""
    for path in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _MIN_AGE_S:
                continue
            if (fd := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)


@functools.cache
def _sweep_once(root: Path) -> None:
    sweep(root)


def _lock(path: Path) -> int | None:
    """Descriptor that holds the folder's lock until it is closed; ``None`` where another holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
