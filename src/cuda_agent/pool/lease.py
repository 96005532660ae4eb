"""Exclusive use of one device, between all processes of this machine's user.

An advisory file lock in the cache folder: held by one judge at a time, freed by the kernel when its
process dies, whatever way. Does not cover: other users, other programs.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cuda_agent.config import cache_dir
from cuda_agent.errors import InfrastructureError

_log = logging.getLogger(__name__)
_numbers = itertools.count()


@contextmanager
def lease(device: str) -> Iterator[None]:
    """Hold the device's lease; waits while another judge holds it.

    Args:
        device: ``cpu`` or ``cuda:N``.

    Raises:
        InfrastructureError: the cache folder cannot be written.
    """
    path = _folder() / f"{_file_name(device)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error.strerror}", "Set CUDA_AGENT_CACHE to a folder you can write."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("another judge works on %s: waiting for its lease", device)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def attendance(device: str) -> Iterator[None]:
    """Be known, within, as a process whose judges share the device's lease (:func:`attendants`).

    A lock in the cache folder, freed by the kernel when the process dies. Where the folder cannot be written
    nobody is known: that is for the lease to say.
    """
    path = _folder() / f"{_file_name(device)}.judges" / f"{os.getpid()}-{next(_numbers)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def attendants(device: str) -> frozenset[int]:
    """Process ids that :func:`attendance` makes known, and this one; those of dead processes not."""
    folder = _folder() / f"{_file_name(device)}.judges"
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return frozenset({os.getpid(), *(_pid(entry) for entry in entries if _is_held(entry))})


def _is_held(entry: Path) -> bool:
    try:
        with entry.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # gone since the listing
    return False


def _pid(entry: Path) -> int:
    return int(entry.name.partition("-")[0])


def _folder() -> Path:
    return cache_dir() / "leases"


def _file_name(device: str) -> str:
    return device.replace(":", "-")
