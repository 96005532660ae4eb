"""Compiler output, cut to what a model can use: ``file:line: error: message`` and the line it is about.

Understands g++ and clang++, nvcc (host, device and ptxas) and the linker. Notes, include stacks and
template instantiation chains are dropped, except the innermost line of the workspace that an error
inside a header came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_CHARS = 4000
_MAX_MESSAGE = 400
_MAX_SNIPPET = 160
_RAW_TAIL_LINES = 25

# kernels/a.cpp:3:7: error: text (g++, clang++; also "fatal error", "note", "warning")
_GNU = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? "
    r"(?P<kind>fatal error|error|note|warning): (?P<text>.*)$"
)
# kernels/a.cu(3): error: text, with an optional error number (nvcc's front end)
_EDG = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): "
    r"(?P<kind>(?:catastrophic )?error|warning|remark)(?: #[\w-]+)?: (?P<text>.*)$"
)
_PTXAS = re.compile(
    r"^ptxas (?:(?P<file>\S+), line (?P<line>\d+); )?\s*(?P<kind>error|fatal)\s*:\s*(?P<text>.*)$"
)
_LINKER = re.compile(r"(undefined reference to|multiple definition of|cannot find -l|undefined symbol).*$")
_DRIVER = re.compile(
    r"^(?:\S*(?:g\+\+|clang\+\+|cc1plus|nvcc|nvlink|cicc|ld))\s*:? "
    r"(?:fatal|fatal error|error)\s*:\s*(?P<text>.*)$"
)
_REQUIRED = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)?\s+(?:required|recursively required) from"
)
_DETECTED = re.compile(r"at line (?P<line>\d+) of (?P<file>\S+)")
_COUNT = re.compile(r"^\d+ (?:errors?|catastrophic errors?) detected in the compilation of")
_MEMORY = re.compile(
    r"virtual memory exhausted|cannot allocate memory|out of memory|Killed signal terminated", re.IGNORECASE
)

_SHORTER = (
    (
        re.compile(r"std::__cxx11::basic_string<char(?:, std::char_traits<char>, std::allocator<char> ?)?>"),
        "std::string",
    ),
    (re.compile(r"std::__cxx11::"), "std::"),
    (re.compile(r", std::allocator<[^<>]*> ?(?=>)"), ""),
    (re.compile(r" \[with [^\]]*\]"), ""),
    (re.compile(r"[‘’]"), "'"),
)


@dataclass
class _Error:
    where: str
    text: str
    snippet: list[str] = field(default_factory=list)
    origin: str = ""

    def render(self) -> str:
        head = f"{self.where}: error: {self.text}" if self.where else f"error: {self.text}"
        if self.origin and not self.where.startswith(self.origin):
            head += f" (from {self.origin})"
        return "\n".join([head, *self.snippet])


def summarise(output: str, *, root: Path | None = None, limit: int = MAX_CHARS) -> str:
    """Errors of a build's output, at most ``limit`` characters, whole errors only.

    Args:
        output: what the compilers and the linker wrote.
        root: the build folder; its paths become relative.
        limit: characters.
    """
    if root is not None:
        output = output.replace(f"{root}/", "")
    errors = _distinct(_parse(output.splitlines()))
    parts = [] if errors else [_tail(output, limit - 200)]
    size = 0
    for index, error in enumerate(errors):
        text = error.render()
        if parts and size + len(text) + 40 > limit:
            parts.append(f"... and {len(errors) - index} more errors")
            break
        parts.append(text[: limit - 40])
        size += len(parts[-1]) + 1
    if _MEMORY.search(output):
        parts.append("The compiler ran out of memory: include fewer headers or instantiate fewer templates.")
    return "\n".join(parts)


def _parse(lines: Iterable[str]) -> Iterator[_Error]:
    """Errors in order, each with the source line and caret that follow it."""
    current: _Error | None = None
    origin = ""
    for line in lines:
        started, is_error = _start(line)
        if started is not None:
            if current is not None:
                yield current
            current = started if is_error else None
            if current is not None:
                current.origin = origin
            origin = ""
        elif required := _REQUIRED.match(line):
            if _in_workspace(required["file"]):
                origin = f"{required['file']}:{required['line']}"
        elif current is not None:
            _extend(current, line)
    if current is not None:
        yield current


def _start(line: str) -> tuple[_Error | None, bool]:
    """The diagnostic that a line begins, and whether it is an error."""
    if match := _GNU.match(line) or _EDG.match(line):
        where = f"{match['file']}:{match['line']}"
        return _Error(where, _shorten(match["text"])), "error" in match["kind"]
    if match := _PTXAS.match(line):
        return _Error("ptxas", _shorten(match["text"])), True
    if match := _LINKER.search(line):
        return _Error("", _shorten(match[0])), True
    if match := _DRIVER.match(line):
        # What follows a named error ("compilation terminated", "ld returned 1") tells nothing new.
        return _Error("", _shorten(match["text"])), bool(_MEMORY.search(line))
    return (_Error("", ""), False) if _COUNT.match(line) else (None, False)


def _extend(error: _Error, line: str) -> None:
    """Keep the first source line and its caret; take the workspace line out of nvcc's chain."""
    if detected := _DETECTED.search(line):
        if _in_workspace(detected["file"]):
            error.origin = f"{detected['file']}:{detected['line']}"
        return
    is_source = line.startswith(("  ", "\t")) and line.strip() and "detected during" not in line
    if is_source and len(error.snippet) < 2 and not error.origin:
        error.snippet.append(line.rstrip()[:_MAX_SNIPPET])


def _in_workspace(file: str) -> bool:
    return not file.startswith(("/", "<"))


def _shorten(text: str) -> str:
    for pattern, replacement in _SHORTER:
        text = pattern.sub(replacement, text)
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ..."


def _distinct(errors: Iterable[_Error]) -> list[_Error]:
    seen: dict[tuple[str, str], _Error] = {}
    for error in errors:
        seen.setdefault((error.where, error.text), error)
    return list(seen.values())


def _tail(output: str, limit: int) -> str:
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-_RAW_TAIL_LINES:])[-limit:] or "the compiler failed and said nothing"
