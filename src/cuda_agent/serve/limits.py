"""What stands before the routes: the token and the size of a body. Pure ASGI: nothing is read before."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_DISCARD_BYTES = 256 << 20
OPEN_PATHS = frozenset({"/v1/health", "/openapi.json", "/docs"})


class TokenRequired:
    """Refuses whatever lacks the token, before its body is read.

    The comparison takes the same time wherever the difference is. Does not cover: who listens on the way
    (put TLS before it where the network is not trusted).

    Args:
        app: what is guarded.
        token: the one token.
    """

    def __init__(self, app: App, *, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._known(scope):
            await self._app(scope, receive, send)
            return
        await _discard(receive)
        await answer_error(send, 401, "the token is missing or wrong", challenge=True)

    def _known(self, scope: Message) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, b"Bearer " + self._token)


class BodyLimit:
    """Refuses a body over the limit: by its announced length, and while it comes.

    Args:
        app: what is guarded.
        limit: bytes.
    """

    def __init__(self, app: App, *, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await _discard(receive)
            await self._refuse(send)
            return
        body = await self._read(receive)
        if body is None:
            await self._refuse(send)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, or ``None`` when it is over the limit."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > self._limit:
                if more:
                    await _discard(receive)
                return None
        return b"".join(parts)

    async def _refuse(self, send: Send) -> None:
        await answer_error(send, 413, f"a request is larger than {self._limit >> 20} MiB")


async def _discard(receive: Receive) -> None:
    """Let a refused body pass, up to a limit: a client still sending would see a reset, not the answer."""
    size, more = 0, True
    while more and size < _DISCARD_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer_error(send: Send, status: int, cause: str, *, challenge: bool = False) -> None:
    """An error in the form of all others."""
    content = json.dumps({"error": {"kind": "UsageError", "cause": cause, "remedy": ""}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if challenge:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
