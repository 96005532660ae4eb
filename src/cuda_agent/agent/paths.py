"""Names of files, confined to the workspace."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

MAX_FILE_BYTES = 16 * 2**20
"""Largest file the tools read or edit."""

HOST_FAULTS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
}
"""Errors of the system that are not the policy's doing: the sandbox is broken."""


class ToolError(Exception):
    """A tool could not do what it was asked; the text is for the policy."""


class Confined:
    """Resolves names given by a policy and refuses what lies outside the workspace.

    Covers: absolute names elsewhere, ``..``, links (any part of a name) that lead out, devices and pipes.
    Does not cover: a link swapped in between check and use by a command of the same policy, which could
    reach the target by itself.
    """

    def __init__(self, workspace: Path) -> None:
        self.root = workspace.resolve()

    def resolve(self, name: str) -> Path:
        """Absolute path inside the workspace, links resolved.

        Raises:
            ToolError: outside, or not a name.
        """
        try:
            path = (self.root / name).resolve()
            path.exists()  # finds what resolve lets pass: a name too long
        except (OSError, ValueError, RuntimeError):  # NUL, too long, a loop of links
            raise ToolError(f"{name!r} is not a usable file name") from None
        if not path.is_relative_to(self.root):
            raise ToolError(f"{name} is outside the workspace {self.root}; only files inside can be used")
        return path

    def show(self, path: Path) -> str:
        """Name relative to the workspace."""
        return path.relative_to(self.root).as_posix()

    def read(self, path: Path) -> bytes:
        """Bytes of a regular file.

        Raises:
            ToolError: missing, a folder, special, too large or unreadable.
        """
        name = self.show(path)
        try:
            # O_NONBLOCK: opening a pipe without a writer must not hang.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ToolError(f"{name} does not exist") from None
        except OSError as error:
            raise ToolError(f"cannot read {name}: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{name} is not a regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise ToolError(f"{name} has {status.st_size:,} bytes: too large; use Bash on parts of it")
            return file.read(MAX_FILE_BYTES + 1)

    def write(self, path: Path, data: bytes) -> None:
        """Replace or make a file in one step, folders on the way included.

        Raises:
            ToolError: a folder or a read-only file in the way, or the disk refuses.
        """
        name = self.show(path)
        mode = 0o644
        if path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
            if not path.is_file():
                raise ToolError(f"{name} is not a regular file")
            if not mode & stat.S_IWUSR:  # asked of the mode: as root every open would succeed
                raise ToolError(f"{name} is read-only: it is fixed and must not be changed")
        beside = path.with_name(f".{path.name[:200]}.{os.getpid()}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(data)
            beside.chmod(mode)
            beside.replace(path)
        except OSError as error:
            if error.errno in HOST_FAULTS:
                raise
            raise ToolError(f"cannot write {name}: {error.strerror}") from None
        finally:
            with suppress(OSError):
                beside.unlink()
