"""Messages between the judge and one worker: JSON objects with file descriptors, over a socket pair.

A worker's answers are data, never code; the judge believes nothing in them that could raise a verdict.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 64 << 20
"""Longest message taken from a worker; samples and plans of the largest tasks stay far below."""

MAX_FDS = 64
"""Descriptors received at once; a message carries one for each block."""


MAX_TEXT = 4096
"""Characters of a worker's text that the judge takes over."""


def plain_text(value: object, most: int = MAX_TEXT) -> str:
    """A worker's text so that it can be written anywhere: at most ``most`` characters, no lone surrogates."""
    return str(value)[:most].encode("utf-8", "replace").decode("utf-8")


class ChannelClosed(Exception):
    """The other side is gone, or broke the framing."""


class Channel:
    """One end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message with descriptors attached.

        Raises:
            ChannelClosed: the other side is gone.
        """
        body = json.dumps(message).encode()
        data = struct.pack("<IB", len(body), len(fds)) + body
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._sock.sendmsg([data], ancillary)
            self._sock.sendall(data[sent:])
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Receive one message; descriptors belong to the caller.

        Raises:
            ChannelClosed: the other side is gone, or sent garbage.
            TimeoutError: nothing whole came within ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fds: list[int] = []
        try:
            head = self._read(5, fds, deadline)
            length, num_fds = struct.unpack("<IB", head)
            if length > MAX_MESSAGE_BYTES:
                raise ChannelClosed("oversized message")
            message = json.loads(self._read(length, fds, deadline))
            if not isinstance(message, dict) or len(fds) != num_fds:
                raise ChannelClosed("malformed message")
        except (ChannelClosed, TimeoutError, ValueError, RecursionError) as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, ValueError | RecursionError):
                raise ChannelClosed("malformed message") from None
            raise
        return message, fds

    def _read(self, length: int, fds: list[int], deadline: float | None) -> bytes:
        chunks = bytearray()
        while len(chunks) < length:
            if deadline is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                self._sock.settimeout(remaining)
            else:
                self._sock.settimeout(None)
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    length - len(chunks), socket.CMSG_SPACE(MAX_FDS * 4)
                )
            except TimeoutError:
                raise
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                    fds.extend(received)
            if len(fds) > MAX_FDS:  # or a worker could use up the judge's own
                raise ChannelClosed("more descriptors than a message carries")
            if not data:
                raise ChannelClosed("the other side closed")
            chunks += data
        return bytes(chunks)

    def close(self) -> None:
        """Close this end; may run twice."""
        self._sock.close()
