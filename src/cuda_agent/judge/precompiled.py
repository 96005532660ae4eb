"""Headers of PyTorch and pybind11 parsed once: precompiled headers by the hash of all that decides them.

Covers: a header forced on a source that did not ask for it (one is used only where the source begins
with includes that name it, so that the object is the same byte for byte), a header that a build could
change (made from our own text in a sandbox of its own, stored by our user, shown to compilers read-only),
and one that was changed or cut short on disk (its bytes are hashed once in each process, and again
whenever its status changes). Does not cover: whoever can write the cache folder as our user; such a one
can change objects too. GCC only: other compilers read every header anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.judge.object_cache import resolve_include

_log = logging.getLogger(__name__)
_VERSION = "1"
_MAX_BYTES = 4 << 30
_LEAST_FREE_BYTES = 4 << 30
_NAME = "prefix.hpp"
_GCH = f"{_NAME}.gch"
_SUM = "sum.json"
_REGISTRY = "binding_registry.h"
_PYBIND = ("pybind11/pybind11.h", "pybind11/stl.h")
# The first whose headers a source names itself is used.
_SETS = (
    ("torch/extension.h",),
    ("torch/types.h", "torch/csrc/utils/pybind.h"),
    ("torch/types.h",),
    _PYBIND,
)
_BLANK = re.compile(rb"[ \t\r\n]+|//[^\n\\]*\n|/\*(?:[^*]|\*(?!/))*\*/")
_ANGLE = re.compile(rb"#[ \t]*include[ \t]*<([\w.+/-]+)>[ \t\r]*(?=\n|//)")
_QUOTED = re.compile(rb'#[ \t]*include[ \t]*"([\w./-]+)"[ \t\r]*(?=\n|//)')
_hashed: dict[tuple[str, tuple[int, ...]], str] = {}

Compile = Callable[[Path, Path], bool]
"""Compiles the first path (a header, alone in its folder) to the second; false where that fails."""


def header_text(source: str, files: Mapping[str, bytes]) -> str | None:
    """Text of the header that may be read before a source without changing what the source means.

    Args:
        source: name of a workspace file.
        files: all files, our fixed ones among them.

    Returns:
        Include lines, or ``None`` where the source does not begin with one of the known sets: before
        them there may only be comments and other includes of the toolchain.
    """
    named = _leading_includes(source, files)
    for headers in _SETS:
        if named.issuperset(headers):
            return "".join(f"#include <{header}>\n" for header in headers)
    return None


def _leading_includes(source: str, files: Mapping[str, bytes]) -> set[str]:
    """Headers that a source names before anything else; the registry of bindings counts as what it reads."""
    text, position, named = files[source], 0, set[str]()
    if b"??/" in text:
        return named
    while True:
        if match := _BLANK.match(text, position):
            pass
        elif (match := _ANGLE.match(text, position)) and _is_plain(match[1]):
            named.add(match[1].decode())
        elif (match := _QUOTED.match(text, position)) and _is_registry(source, match[1], files):
            named.update(_PYBIND)
        else:
            return named
        position = match.end()


def _is_plain(name: bytes) -> bool:
    return not name.startswith(b"/") and b".." not in name


def _is_registry(source: str, target: bytes, files: Mapping[str, bytes]) -> bool:
    """Whether a quoted include reads our fixed file and cannot read another."""
    return set(resolve_include(source, target.decode(), files)) == {_REGISTRY}


@dataclass(frozen=True)
class HeaderStore:
    """Precompiled headers by content, each a folder that appears by rename and is never changed."""

    root: Path

    def key(self, text: str, argv: tuple[str, ...], fingerprint: str) -> str:
        """Hash of all that decides a precompiled header: text, flags, compiler, PyTorch."""
        parts = [_VERSION, text, argv, fingerprint]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def find(self, key: str, text: str, compile_header: Compile) -> Path | None:
        """The header to read first, its precompiled form beside it; ``None`` where there is none.

        The first call for a key only notes that it is wanted: making one takes longer than reading the
        headers once. The second call makes it, unless another process is about to.
        """
        folder = self.root / key
        try:
            if self._is_whole(folder):
                os.utime(folder)
                return folder / _NAME
            self.root.mkdir(parents=True, exist_ok=True)
            wanted = self.root / f"{key}.wanted"
            if not wanted.exists():
                wanted.touch()
                return None
            return self._make(key, text, compile_header)
        except OSError as error:
            _log.warning("no precompiled header: %s", error)
            return None

    def _make(self, key: str, text: str, compile_header: Compile) -> Path | None:
        failed, folder = self.root / f"{key}.failed", self.root / key
        if failed.exists() or shutil.disk_usage(self.root).free < _LEAST_FREE_BYTES:
            return None
        draft = self.root / f"draft-{uuid.uuid4().hex}"
        with (self.root / f"{key}.wanted").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if self._is_whole(folder):  # another process has just made it
                return folder / _NAME
            try:
                draft.mkdir()
                (draft / _NAME).write_text(text, encoding="utf-8")
                if not compile_header(draft / _NAME, draft / _GCH):
                    failed.touch()
                    return None
                total = {"sha256": _sha256(draft / _GCH)}
                (draft / _SUM).write_text(json.dumps(total), encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        self._prune(keep=folder)
        return folder / _NAME

    def _is_whole(self, folder: Path) -> bool:
        """Whether an entry holds the bytes that were made; one that does not is removed."""
        try:
            expected = json.loads((folder / _SUM).read_text(encoding="utf-8"))["sha256"]
            if _sha256(folder / _GCH) == expected:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            if not folder.exists():
                return False
        _log.warning("%s is not as it was made; it is made anew", folder)
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def _prune(self, *, keep: Path) -> None:
        """Delete the longest unused over the size limit, and what a killed process left."""
        with suppress(OSError):
            entries = sorted(self.root.glob("*/" + _GCH), key=lambda path: path.parent.stat().st_mtime)
            excess = sum(path.stat().st_size for path in entries) - _MAX_BYTES
            for path in entries:
                is_left = path.parent.name.startswith("draft-")
                if path.parent == keep or (is_left and time.time() - path.stat().st_mtime < 3600):
                    continue
                if is_left or excess > 0:
                    excess -= path.stat().st_size
                    shutil.rmtree(path.parent, ignore_errors=True)


def _sha256(path: Path) -> str:
    """Of a file's bytes; remembered while the file's status stays (its change time cannot be set back)."""
    status = path.lstat()
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = (str(path), state)
    if known not in _hashed:
        with path.open("rb") as file:
            _hashed[known] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashed[known]
