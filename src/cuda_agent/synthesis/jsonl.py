"""Rows as JSON lines on disk: what a stage made stays, a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; lines that a killed run cut off are skipped. No file: none.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                if (row := _parsed(line)) is not None:
                    yield row
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name another file.") from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class Appender:
    """Appends rows to a file, each flushed at once; a context manager.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
            self._close_cut_line()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", "Name another folder.") from None

    def _close_cut_line(self) -> None:
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, row: Mapping[str, Any]) -> None:
        """One line; it survives the end of this process.

        Raises:
            UsageError: the disk is full.
        """
        try:
            self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"cannot write {self._path}: {error.strerror}", "Free some space; the command goes on."
            ) from None

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_rows(path: Path, rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]]) -> None:
    """Replace a file by rows, at once or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for row in rows:
                file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another folder.") from None
