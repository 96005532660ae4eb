"""Read, Write, Edit, MultiEdit: files of the workspace, and no others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from cuda_agent.agent.edits import EditStep, apply_edits
from cuda_agent.agent.output import printable
from cuda_agent.agent.paths import Confined, ToolError

_MAX_LINE_CHARS = 2000


class FileTools:
    """Tools on single files. Remembers what was read: Write refuses to destroy what the policy never saw."""

    def __init__(self, paths: Confined) -> None:
        self._paths = paths
        self._seen: dict[Path, str] = {}

    def tools(self) -> dict[str, Callable[..., str]]:
        """The tools by name."""
        return {"Read": self.read, "Write": self.write, "Edit": self.edit, "MultiEdit": self.multi_edit}

    def read(self, file_path: str, offset: int = 1, limit: int = 2000) -> str:
        """Read a text file of the workspace; lines come numbered from 1.

        Args:
            file_path: relative to the workspace, or absolute inside it.
            offset: first line to read.
            limit: number of lines to read.
        """
        path = self._paths.resolve(file_path)
        if path.is_dir():
            names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in path.iterdir())
            raise ToolError(f"{file_path} is a folder; it holds: {', '.join(names[:100]) or 'nothing'}")
        data = self._paths.read(path)
        self._seen[path] = _digest(data)
        if not data:
            return "(the file is empty)"
        lines = printable(data).removesuffix("\n").split("\n")
        first = max(1, offset)
        if first > len(lines):
            raise ToolError(f"{file_path} has {len(lines)} lines; there is no line {first}")
        chosen = lines[first - 1 : first - 1 + max(1, limit)]
        shown = "\n".join(f"{n:6d}\t{_cut(line)}" for n, line in enumerate(chosen, first))
        left = len(lines) - (first - 1 + len(chosen))
        return f"{shown}\n[{left} more lines; read on with offset {first + len(chosen)}]" if left else shown

    def write(self, file_path: str, content: str) -> str:
        """Write a whole file. A file that exists must have been read before, as it now is.

        Args:
            file_path: relative to the workspace, or absolute inside it.
            content: the whole new text.
        """
        path = self._paths.resolve(file_path)
        existed = path.exists()
        if existed and path.is_file():
            seen = self._seen.get(path)
            if seen is None:
                raise ToolError(f"{file_path} exists and was not read; Read it before you overwrite it")
            if seen != _digest(self._paths.read(path)):
                raise ToolError(f"{file_path} has changed since it was read; Read it again")
        self._save(path, content)
        num_lines = content.count("\n") + (not content.endswith("\n") and content != "")
        return f"{'overwrote' if existed else 'created'} {self._paths.show(path)} ({num_lines} lines)"

    def edit(self, file_path: str, old_string: str, new_string: str, *, replace_all: bool = False) -> str:
        """Replace a string in a file. It must occur exactly once, unless replace_all is set.

        Args:
            file_path: relative to the workspace, or absolute inside it.
            old_string: the text to replace, exactly as in the file, without line numbers.
            new_string: the text to put there.
            replace_all: replace every occurrence.
        """
        step = EditStep(old_string=old_string, new_string=new_string, replace_all=replace_all)
        return self.multi_edit(file_path, [step])

    def multi_edit(self, file_path: str, edits: list[EditStep]) -> str:
        """Make several replacements in one file, in order. Either all are made or none.

        Args:
            file_path: relative to the workspace, or absolute inside it.
            edits: the replacements; each sees the text as the one before left it.
        """
        path = self._paths.resolve(file_path)
        try:
            # Kept as bytes and decoded here: opening as text would change the line ends.
            text = self._paths.read(path).decode("utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{file_path} is not UTF-8 text") from None
        if not edits:
            raise ToolError("edits is empty")
        changed, count = apply_edits(text, edits)
        self._save(path, changed)
        return f"edited {self._paths.show(path)} ({count} replacement{'s' if count > 1 else ''})"

    def _save(self, path: Path, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise ToolError("the text holds half a surrogate pair, which no file can hold") from None
        self._paths.write(path, data)
        self._seen[path] = _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _cut(line: str) -> str:
    if len(line) <= _MAX_LINE_CHARS:
        return line
    return f"{line[:_MAX_LINE_CHARS]} [... {len(line) - _MAX_LINE_CHARS} more characters ...]"
