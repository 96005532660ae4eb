"""Static scan of a candidate's sources: a tripwire with reasons, not a proof.

Covers the plain ways to tamper (rebinding attributes of torch, builtins or other modules; sys.modules;
walking frames; listing gc objects; switching the guard off), forbidden imports, and C++ that starts
processes or loads libraries. Does not cover names put together at run time, ``exec`` of built strings,
or macros that paste tokens: isolation, the dispatcher guard and the symbol scan are for those.

What honest kernels contain is no offence: ``try``, ``pass``, ``threading.Lock``, PyTorch operators in
``prepare()``. Operators that forward names are a note: the dispatcher says what really ran. Standard
library only; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from cuda_agent.judge.finding import Finding, Severity
from cuda_agent.judge.static_cpp import scan_cpp
from cuda_agent.judge.static_python import scan_python

__all__ = ["Finding", "Severity", "scan_sources"]

_CPP_SUFFIXES = frozenset([".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl"])


def scan_sources(files: Mapping[str, bytes]) -> list[Finding]:
    """Scan Python and C++ sources.

    Args:
        files: contents by path relative to the workspace (posix). Other suffixes are skipped; a Python
            file that does not parse gives nothing, since it will not load either.
    """
    findings: list[Finding] = []
    for path in sorted(files):
        text = files[path].decode("utf-8", errors="replace")
        suffix = PurePosixPath(path).suffix
        if suffix == ".py":
            findings += scan_python(path, text)
        elif suffix in _CPP_SUFFIXES:
            findings += scan_cpp(path, text)
    return list(dict.fromkeys(findings))
