"""The template library under ``skills/playbook``: sections of C++ and CUDA, read as data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources

_ROOT = "cuda_agent.skills"


@cache
def text(name: str) -> str:
    """A whole template file."""
    return (resources.files(_ROOT) / "playbook" / name).read_text(encoding="utf-8")


@cache
def sections(name: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Sections of a file in order: name -> (sections it needs, text)."""
    found: dict[str, tuple[tuple[str, ...], list[str]]] = {}
    lines: list[str] = []
    for line in text(name).splitlines():
        if line.startswith("//@ "):
            title, _, needs = line.removeprefix("//@ ").partition(" needs ")
            lines = []
            found[title.strip()] = (tuple(needs.split()), lines)
        else:
            lines.append(line)
    return {title: (needs, "\n".join(body).strip()) for title, (needs, body) in found.items()}


def select(name: str, wanted: Iterable[str]) -> str:
    """The text of the wanted sections and of those they need, in file order, prelude first.

    Raises:
        KeyError: the library has no such section.
    """
    table = sections(name)
    chosen = {"prelude"}
    stack = list(wanted)
    while stack:
        title = stack.pop()
        if title not in chosen:
            chosen.add(title)
            stack.extend(table[title][0])
    return "\n\n".join(body for title, (_, body) in table.items() if title in chosen) + "\n"
