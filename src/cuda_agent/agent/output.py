"""What a policy reads of a tool's output: printable, and cut with head and tail kept."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

# CSI and OSC sequences (colours, cursor movement, titles), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def printable(data: bytes) -> str:
    """Text of any bytes: bad UTF-8 and control characters as ``\\xNN``, terminal escapes dropped.

    A carriage return goes back to the line's start, so that of a progress bar its last state is kept.
    """
    text = data.decode("utf-8", errors="backslashreplace").replace("\r\n", "\n")
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def writable(value: Any) -> Any:
    """``value`` (plain JSON types) without lone surrogates, which no file and no pipe can take.

    They come from models (half an emoji as ``\\ud83d``) and from file names that are not UTF-8.
    """
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {writable(key): writable(member) for key, member in value.items()}
    return [writable(item) for item in value] if isinstance(value, list) else value


def cap(text: str, limit: int) -> str:
    """``text`` within about ``limit`` characters: its head and tail, and how much is left out between."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[len(text) - limit // 2 :]
    # Whole lines read better, where that costs little.
    cut = head.rfind("\n") + 1
    head = head[:cut] if cut > len(head) * 3 // 4 else head
    cut = tail.find("\n") + 1
    tail = tail[cut:] if 0 < cut < len(tail) // 4 else tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head.rstrip()}\n[... {left_out:,} characters left out ...]\n{tail.lstrip()}"


class HeadTail:
    """Bounded memory for an endless stream: its first and its last ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._clear()

    def _clear(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append bytes of the stream."""
        self.total += len(data)
        room = self._size - len(self._head)
        self._head += data[:room]
        if rest := data[room:]:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._size:
            self._tail_bytes -= len(self._tail.popleft())

    def take(self) -> str:
        """Printable text of what came since the last call, and forget it."""
        left_out = self.total - len(self._head) - self._tail_bytes
        gap = f"\n[... {left_out:,} bytes left out ...]\n" if left_out else ""
        tail = b"".join(self._tail)
        # Decoded as one, unless bytes are missing between: a character may lie across the seam.
        head = bytes(self._head)
        text = printable(head) + gap + printable(tail) if gap else printable(head + tail)
        self._clear()
        return text

    def take_bytes(self) -> bytes:
        """The kept bytes as they came, and forget them."""
        data = bytes(self._head) + b"".join(self._tail)
        self._clear()
        return data
