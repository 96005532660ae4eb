"""Exclusive use of one device, between all processes of this machine's user.

An advisory file lock in the cache folder: held by one judge at a time, freed by the kernel when its
process dies, whatever way. Does not cover: other users, other programs.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from cuda_agent.config import cache_dir
from cuda_agent.errors import InfrastructureError

_log = logging.getLogger(__name__)


@contextmanager
def lease(device: str) -> Iterator[None]:
    """Hold the device's lease; waits while another judge holds it.

    Args:
        device: ``cpu`` or ``cuda:N``.

    Raises:
        InfrastructureError: the cache folder cannot be written.
    """
    path = cache_dir() / "leases" / f"{device.replace(':', '-')}.lock"
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
