"""Search by regular expression where ripgrep is missing. Runs as a script: ``python -I -S``.

In a process of its own, because a bad pattern can take exponential time: the caller kills it then. Takes
one JSON argument (``root, pattern, ignore_case, multiline, glob, mode, context``), prints lines. Exit status
as ripgrep: 0 found, 1 nothing, 2 a bad pattern. Standard library only.
"""

import fnmatch
import json
import os
import re
import sys
from pathlib import Path

MAX_FILE_BYTES = 16 * 2**20


def files(root: Path, pattern: "str | None") -> "list[Path]":
    """Files under ``root``, or ``root`` itself. As ripgrep: no hidden files, links not followed."""
    if root.is_file():
        return [root]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for path in (Path(folder, name) for name in sorted(names)):
            if path.name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            if pattern is None or matches(path.relative_to(root), pattern):
                found.append(path)
    return sorted(found)


def matches(relative: Path, pattern: str) -> bool:
    """Whether a file's name, or its path where the pattern has a slash, fits a glob."""
    for one in braces(pattern):
        if "/" not in one and fnmatch.fnmatch(relative.name, one):
            return True
        if "/" in one and fnmatch.fnmatch(relative.as_posix(), one.lstrip("/").replace("**/", "*")):
            return True
    return False


def braces(pattern: str) -> "list[str]":
    """``a.{b,c}`` as ``a.b`` and ``a.c``."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [whole for part in match[1].split(",") for whole in braces(head + part + tail)]


def hits(text: str, pattern: "re.Pattern[str]", multiline: bool) -> "list[int]":
    """Numbers (from 0) of the lines with a match."""
    if not multiline:
        return [number for number, line in enumerate(text.split("\n")) if pattern.search(line)]
    found: set[int] = set()
    for match in pattern.finditer(text):
        first = text.count("\n", 0, match.start())
        found.update(range(first, first + match[0].count("\n") + 1))
    return sorted(found)


def show(name: Path, text: str, found: "list[int]", context: int) -> None:
    """Print matching lines as ``name:number:line`` and those around them as ``name-number-line``."""
    lines = text.split("\n")
    chosen = {n for hit in found for n in range(max(0, hit - context), min(len(lines), hit + context + 1))}
    last = -1
    for number in sorted(chosen):
        if context and last >= 0 and number > last + 1:
            print("--")
        mark = ":" if number in set(found) else "-"
        print(f"{name}{mark}{number + 1}{mark}{lines[number][:500]}")
        last = number


def main() -> None:
    """Search as the request says."""
    request = json.loads(sys.argv[1])
    flags = (re.IGNORECASE if request["ignore_case"] else 0) | (
        re.MULTILINE | re.DOTALL if request["multiline"] else 0
    )
    try:
        pattern = re.compile(request["pattern"], flags)
    except re.error as error:
        print(f"regex parse error: {error}", file=sys.stderr)
        sys.exit(2)
    status = 1
    for path in files(Path(request["root"]), request["glob"]):
        if path.stat().st_size > MAX_FILE_BYTES:
            continue
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        found = hits(text.removesuffix("\n"), pattern, request["multiline"])
        if not found:
            continue
        status = 0
        if request["mode"] == "files_with_matches":
            print(path)
        elif request["mode"] == "count":
            print(f"{path}:{len(found)}")
        else:
            show(path, text.removesuffix("\n"), found, request["context"])
    sys.exit(status)


if __name__ == "__main__":
    main()
