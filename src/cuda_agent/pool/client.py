"""A pool elsewhere, over HTTP (``cuda-agent serve``). Standard library only.

A server that went away is waited for a while: shortly at first contact, where a wrong address is likelier,
longer once it has answered. A full queue is waited out likewise. Errors are one line each.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from cuda_agent.errors import PoolError, UsageError
from cuda_agent.pool.contract import Job, JudgeRequest, NoSuchJobError, PoolMetrics, QueueFullError
from cuda_agent.pool.wire import error_from_dict, job_from_dict, metrics_from_dict, request_to_dict

TOKEN_VARIABLE = "CUDA_AGENT_POOL_TOKEN"
TOKEN_FILE_VARIABLE = "CUDA_AGENT_POOL_TOKEN_FILE"
MIN_TOKEN_CHARS = 16
_REQUEST_LIMIT_S = 60.0
_MAX_ANSWER_BYTES = 64 << 20
_FIRST_WAIT_S, _MAX_WAIT_S = 0.2, 5.0


def read_token(path: Path | None = None) -> str:
    """The pool's token: of a file, else ``$CUDA_AGENT_POOL_TOKEN``, else ``$CUDA_AGENT_POOL_TOKEN_FILE``.

    Raises:
        UsageError: none is given, it is too short, or the file cannot be read.
    """
    named = path or (Path(value) if (value := os.environ.get(TOKEN_FILE_VARIABLE)) else None)
    if path is None and (token := os.environ.get(TOKEN_VARIABLE)):
        named = None
    elif named is not None:
        try:
            token = named.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"cannot read the token in {named}", "Name a readable file.") from None
    else:
        raise UsageError("no token for the pool", f"Set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}.")
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"a pool's token has at least {MIN_TOKEN_CHARS} printable ASCII characters and no space",
            "Make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'.",
        )
    return token


class HttpPool:
    """See :class:`cuda_agent.pool.contract.Pool`.

    Args:
        url: ``http://host:port``.
        token: the server's.
        first_patience_s: how long a server that never answered is waited for, seconds.
        patience_s: how long one that went away, or has no room, is waited for, seconds.

    Raises:
        UsageError: the URL is none.
    """

    def __init__(
        self, url: str, token: str, *, first_patience_s: float = 3.0, patience_s: float = 90.0
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise UsageError(f"{url!r} is no pool's address", "It looks like http://host:8765.")
        self.url = url.rstrip("/")
        self._token = token
        self._first_patience_s, self._patience_s = first_patience_s, patience_s
        self._answered = False

    def submit(self, request: JudgeRequest, *, caller: str, job_id: str = "") -> str:
        """See :class:`~cuda_agent.pool.contract.Pool`; waits for room first."""
        body = {**request_to_dict(request), "caller": caller, **({"id": job_id} if job_id else {})}
        return str(self._patient(lambda: self._once("POST", "/v1/jobs", body=body))["id"])

    def job(self, job_id: str, *, wait_s: float = 0.0, seen: int = 0) -> Job:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        query = urllib.parse.urlencode({"wait_s": wait_s, "seen": seen})
        return job_from_dict(self._patient(lambda: self._once("GET", f"/v1/jobs/{job_id}?{query}")))

    def cancel(self, job_id: str) -> Job:
        """See :class:`~cuda_agent.pool.contract.Pool`; does not wait for a server that is down."""
        return job_from_dict(self._once("DELETE", f"/v1/jobs/{job_id}", limit_s=5.0))

    def metrics(self) -> PoolMetrics:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        return metrics_from_dict(self._patient(lambda: self._once("GET", "/v1/metrics")))

    def close(self) -> None:
        """Nothing is held."""

    def _patient(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask again while the server is away or full, less and less often."""
        start, wait_s = time.monotonic(), _FIRST_WAIT_S
        while True:
            try:
                return ask()
            except (_Away, QueueFullError) as error:
                known = self._answered or isinstance(error, QueueFullError)
                patience_s = self._patience_s if known else self._first_patience_s
                if time.monotonic() - start + wait_s > patience_s:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def _once(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        limit_s: float = _REQUEST_LIMIT_S,
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        # Unredirected: a redirect must not carry the token elsewhere.
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as answer:
                content = answer.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, HTTPException) as error:
            raise _Away(self.url, error) from None
        self._answered = True
        return self._object(content)

    def _object(self, content: bytes) -> dict[str, Any]:
        with suppress(ValueError):
            if isinstance(found := json.loads(content), dict):
                return found
        raise PoolError(f"{self.url} does not answer as a pool does", "Name a cuda-agent serve.")

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """The server's own words as the error they stand for."""
        told: Mapping[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = dict(json.loads(error.read(1 << 16))["error"])
        cause, remedy = told.get("cause", f"status {error.code}"), told.get("remedy", "")
        if error.code == 401:
            return PoolError(f"the pool at {self.url} refuses the token", f"Set {TOKEN_VARIABLE} anew.")
        if error.code == 413:
            return UsageError(cause, remedy)
        if error.code == 404 and told:
            return NoSuchJobError(cause, remedy)
        if error.code == 429:
            return QueueFullError(cause, remedy)
        if error.code == 503 and told.get("kind") == "PoolError":
            return _Away(self.url, PoolError(cause, remedy))
        if told:
            return error_from_dict(told)
        if error.code >= 500:  # its last moments, or a proxy's words about them
            return _Away(self.url, PoolError(cause))
        return PoolError(f"{self.url} does not answer as a pool does: {cause}", "Name a cuda-agent serve.")


class _Away(PoolError):
    """Nobody answers now."""

    def __init__(self, url: str, error: Exception) -> None:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        super().__init__(f"no pool answers at {url} ({words})", "Start one: cuda-agent serve.")
