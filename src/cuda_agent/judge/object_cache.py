"""Object files by the hash of all that decides them; entries appear by rename and are never changed.

Safe with builds at the same time (the same object is made twice, the last rename wins) and with builds
killed half way (a half-written file is never under an entry's name).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from cuda_agent.backends.base import CompileStep

_CACHE_VERSION = "1"
_ELF = b"\x7fELF"
_MAX_CACHE_BYTES = 2 << 30
_PRUNE_INTERVAL_S = 3600.0
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
_ANY_INCLUDE = re.compile(rb"include|incbin|embed|%:|\?\?=")


def object_key(source: str, files: Mapping[str, bytes], step: CompileStep, fingerprint: str) -> str:
    """Hash of all that decides an object file: sources, included files, flags, compiler, PyTorch."""
    used = _included(source, files)
    content = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(used)}
    parts = [_CACHE_VERSION, source, content, step.argv, fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _included(source: str, files: Mapping[str, bytes]) -> set[str]:
    """Names of the workspace files that a source may include, itself among them.

    Where an include is written in a way that cannot be read off the text (a macro, a digraph,
    ``__has_include``), every file counts: a needless rebuild, never a stale object.
    """
    used: set[str] = set()
    waiting = [source]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        text = files[name].replace(b"\\\r\n", b"").replace(b"\\\n", b"")
        plain = _INCLUDE.findall(text)
        if _ANY_INCLUDE.search(_INCLUDE.sub(b"", text)):
            return set(files)
        for target in plain:
            waiting += resolve_include(name, target.decode(errors="replace"), files)
    return used


def resolve_include(includer: str, target: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Workspace files that a quoted include may mean: beside the includer, then at the root."""
    for base in (str(PurePosixPath(includer).parent), "."):
        name = os.path.normpath(f"{base}/{target}")
        if name in files:
            yield name


class ObjectStore:
    """Object files by content hash. Entries appear by rename and are never changed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Where the object of a key is, once it is made."""
        return self.root / key[:2] / f"{key}.o"

    def temporary(self) -> Path:
        """A name for a compiler to write to, on the same file system."""
        return self.root / "tmp" / f"{uuid.uuid4().hex}.o"

    def put(self, made: Path, entry: Path) -> None:
        """Move a compiler's output to its entry, in one step for readers, as a file of our own user.

        Raises:
            OSError: the disk is full, or the output is not a regular file.
        """
        temporary = self.temporary()
        temporary.parent.mkdir(parents=True, exist_ok=True)
        entry.parent.mkdir(parents=True, exist_ok=True)
        source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            with open(source, "rb") as file, temporary.open("wb") as copy:  # noqa: PTH123  a descriptor
                shutil.copyfileobj(file, copy, 1 << 20)
            temporary.replace(entry)
        finally:
            temporary.unlink(missing_ok=True)
        made.unlink(missing_ok=True)

    def has(self, path: Path) -> bool:
        """Whether the entry is there and is an object file; marks it as used."""
        try:
            with path.open("rb") as file:
                if file.read(len(_ELF)) != _ELF:
                    return False
            os.utime(path)
        except OSError:
            return False
        return True

    def prune(self) -> None:
        """Now and then: delete left-over temporaries, then the longest unused objects over the limit."""
        stamp = self.root / "pruned"
        with suppress(OSError):
            if time.time() - stamp.stat().st_mtime < _PRUNE_INTERVAL_S:
                return
        with suppress(OSError):
            stamp.touch()
            for path in (self.root / "tmp").iterdir():
                if time.time() - path.stat().st_mtime > 24 * 3600:
                    path.unlink(missing_ok=True)
            entries = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in self.root.glob("??/*.o"))
            excess = sum(size for _, size, _ in entries) - _MAX_CACHE_BYTES
            for _, size, path in entries:
                if excess <= 0:
                    break
                path.unlink(missing_ok=True)
                excess -= size
