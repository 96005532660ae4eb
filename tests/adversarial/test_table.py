"""docs/cheats.md says what the tests do, and leaves no entry of the catalogue out."""

from __future__ import annotations

from pathlib import Path

from cheats import CHEATS
from cheats_cuda import CUDA_CHEATS
from harmless import HARMLESS
from table import covered, page

PAGE = Path(__file__).parents[2] / "docs" / "cheats.md"
NUM_ENTRIES = 118


def test_the_page_is_what_the_cheats_make_it() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_entry_is_met() -> None:
    assert covered() == set(range(1, NUM_ENTRIES + 1))


def test_names_are_unique() -> None:
    names = [cheat.name for cheat in (*CHEATS, *CUDA_CHEATS, *HARMLESS)]
    assert len(names) == len(set(names))
