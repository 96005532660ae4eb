"""JSON lines that only grow: a line is on disk before the next; what a killed writer left is passed over."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cuda_agent.errors import InfrastructureError, UsageError


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one object; a last line that a kill left torn is cut off first.

    Raises:
        InfrastructureError: the file cannot be written.
        ValueError: a number is not finite.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    try:
        with path.open("ab+") as file:
            _mend(file)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error.strerror}", "Free disk space, then --resume."
        ) from None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file in order; lines that are none (torn by a kill) are passed over. No file: none.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _mend(file: BinaryIO) -> None:
    """Cut off a last line that is no object; end one that lacks only its line break."""
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    data = file.read()
    start = data.rfind(b"\n") + 1
    try:
        json.loads(data[start:])
    except ValueError:
        file.truncate(start)
    else:
        file.write(b"\n")
