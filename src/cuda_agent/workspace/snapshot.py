"""Freezing a candidate: the bytes of ``model_new.py`` and ``kernels/`` at one moment, and nothing else.

Covers: links (refused, also when one is put in place while we read), special files, sizes. Does not
cover: what the sources say; that is the judge's part.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cuda_agent.errors import WorkspaceError

MODEL_FILE = "model_new.py"
KERNEL_DIR = "kernels"
SUFFIXES = frozenset({".cu", ".cpp", ".h", ".cuh", ".hpp"})
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 8 << 20
MAX_FILES = 256
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Snapshot:
    """A candidate as frozen: file bytes by posix path relative to the workspace."""

    files: Mapping[str, bytes]

    @property
    def hash(self) -> str:
        """SHA-256 over names and bytes, 16 hex digits."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            content = self.files[name]
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Write the files below ``folder``.

        Raises:
            WorkspaceError: a name leads out of the folder, or is none a candidate may have.
        """
        for name, content in self.files.items():
            path = folder / checked_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def checked_name(name: str) -> PurePosixPath:
    """``name`` as a path, if a candidate may have such a file.

    Raises:
        WorkspaceError: it may not.
    """
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts
    kernel = len(path.parts) > 1 and path.parts[0] == KERNEL_DIR and path.suffix in SUFFIXES
    if not inside or not (name == MODEL_FILE or kernel):
        raise WorkspaceError(f"{name} is no file of a candidate", f"Only {MODEL_FILE} and {KERNEL_DIR}/ are.")
    return path


def freeze(workspace: Path) -> Snapshot:
    """Read the candidate of a workspace.

    Raises:
        WorkspaceError: no such folder, no model_new.py, a link, a special file, or too large.
    """
    if not workspace.is_dir():
        raise WorkspaceError(f"no workspace at {workspace}", "Name the folder that holds model_new.py.")
    model = workspace / MODEL_FILE
    if not os.path.lexists(model):
        raise WorkspaceError(f"{workspace} has no {MODEL_FILE}", "Write one with class ModelNew.")
    files: dict[str, bytes] = {}
    total = 0
    for path in (model, *_kernel_paths(workspace / KERNEL_DIR)):
        name = path.relative_to(workspace).as_posix()
        files[name] = _read_regular(path, name)
        total += len(files[name])
        if total > MAX_TOTAL_BYTES or len(files) > MAX_FILES:
            raise WorkspaceError(
                f"the candidate has more than {MAX_FILES} files or {MAX_TOTAL_BYTES >> 20} MiB",
                f"Delete what {KERNEL_DIR}/ does not need.",
            )
    return Snapshot(files)


def _kernel_paths(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Sources below ``kernels/``, sorted; hidden names and other suffixes are ignored."""
    if folder.is_symlink():
        raise _link_error(folder.name)
    if not folder.is_dir() or depth > _MAX_DEPTH:
        return
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _kernel_paths(path, depth + 1)
        elif path.suffix in SUFFIXES or (entry.is_symlink() and path.is_dir()):
            yield path


def _read_regular(path: Path, name: str) -> bytes:
    """Bytes of a regular file; O_NOFOLLOW, so that no link can take its place meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise _link_error(name) from None
        raise WorkspaceError(f"cannot read {name}: {error.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise WorkspaceError(f"{name} is not a regular file", "Put a regular file there.")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise WorkspaceError(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB", "Split or shorten it.")
    return content


def _link_error(name: str) -> WorkspaceError:
    return WorkspaceError(f"{name} is a link", "Put the file itself there.")
