"""One chat-completions request over the ``openai`` client: retries, back-off, limits on time and size."""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from cuda_agent.agent.policies.options import PolicyOptions
from cuda_agent.agent.policies.wire import NonsenseError
from cuda_agent.errors import PolicyError, UsageError

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
"""A longer answer is nonsense: 131,072 tokens take about half a MiB."""

MAX_WAIT_S = 600.0
"""An endpoint that asks for a longer wait is told to the user instead."""

_RETRIED = {408, 409, 425, 429}
_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}


class RefusedError(Exception):
    """The endpoint refuses the request itself (status 4xx, or a setting it lacks); asking again is no use.

    Attributes:
        status: HTTP status.
        message: the endpoint's words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Endpoint:
    """An OpenAI-compatible endpoint.

    Raises:
        UsageError: the ``openai`` package or the key is missing.
    """

    def __init__(self, *, base_url: str | None, options: PolicyOptions) -> None:
        try:
            import openai
        except ImportError:
            raise UsageError(
                "policy chat needs the openai package", "Install it: pip install 'cuda-agent[chat]'."
            ) from None
        self._openai = openai
        self._options = options
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        key = os.environ.get("CUDA_AGENT_API_KEY") or os.environ.get("OPENAI_API_KEY")
        if not key and base_url is None:
            raise UsageError("no API key", "Set OPENAI_API_KEY, or name an endpoint with --base-url.")
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise UsageError(
                f"{base_url!r} is no address of an endpoint", "Name it like http://localhost:8000/v1."
            )
        # A proxy of the environment cannot reach this machine's own endpoint.
        local = base_url is not None and urlsplit(base_url).hostname in _LOCAL_HOSTS
        self._client = openai.OpenAI(
            api_key=key or "none",
            base_url=base_url,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=not local),
        )
        self.url = str(self._client.base_url)

    def complete(
        self, request: Mapping[str, Any], *, read: Callable[[Any], Any], deadline: float | None
    ) -> Any:
        """``read`` of the endpoint's JSON answer, after as many tries as the options allow.

        Args:
            read: takes the answer apart; its NonsenseError counts as a failed try.
            deadline: no try and no wait goes beyond it (``time.monotonic``).

        Raises:
            RefusedError: the request itself is refused.
            PolicyError: the endpoint is down, busy or broken beyond the retries.
        """
        for attempt in range(self._options.max_retries + 1):
            asked_s: float | None = None
            try:
                return read(self._send(request, deadline))
            except self._openai.APIStatusError as error:
                asked_s = self._retry_after_s(error)
                reason = f"answers {error.status_code} ({_words(error)})"
            except self._openai.APITimeoutError:
                reason = f"gave no answer within {self._time_limit_s(deadline):.0f} s"
            except self._openai.APIConnectionError as error:
                reason = f"cannot be reached ({error.__cause__ or error})"
            except NonsenseError as error:
                reason = f"answers nonsense: {error}"
            except self._openai.OpenAIError as error:
                raise PolicyError(f"endpoint {self.url}: {error}") from None
            if attempt < self._options.max_retries:
                self._wait(attempt, asked_s, reason, deadline)
        raise PolicyError(
            f"endpoint {self.url} {reason}, {self._options.max_retries + 1} tries",
            "Check that it is up and that --base-url and the model's name are right, then --resume.",
        )

    def close(self) -> None:
        """Close the connections; may run twice."""
        self._client.close()

    def _send(self, request: Mapping[str, Any], deadline: float | None) -> Any:
        limit_s = self._time_limit_s(deadline)
        ends = time.monotonic() + limit_s
        body = bytearray()
        create = self._client.chat.completions.with_streaming_response.create
        with create(**request, timeout=limit_s) as response:
            # Read in parts: a single read has no limit on its whole length or duration.
            try:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise NonsenseError(f"more than {MAX_BODY_BYTES >> 20} MiB")
                    if time.monotonic() > ends:
                        raise NonsenseError(f"it did not end within {limit_s:.0f} s")
            except _http_errors(self._openai) as error:
                raise NonsenseError(f"it broke off ({type(error).__name__})") from None
        try:
            data = json.loads(body)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise NonsenseError(f"not JSON: {bytes(body[:80])!r}") from None
        _raise_error_body(data)
        return data

    def _retry_after_s(self, error: Any) -> float | None:
        """Seconds the endpoint asks to wait.

        Raises:
            RefusedError, PolicyError: waiting is no use.
        """
        status, message = int(error.status_code), _words(error)
        if status in (401, 403):
            raise PolicyError(
                f"endpoint {self.url} refuses the key ({status}: {message})",
                "Set OPENAI_API_KEY or CUDA_AGENT_API_KEY to a valid one.",
            )
        if getattr(error, "code", None) == "insufficient_quota":
            raise PolicyError(f"endpoint {self.url}: {message}", "Top the account up, then --resume.")
        # llama.cpp and others say with a 500 that they take no tools.
        takes_no_tools = status in (500, 501) and "tool" in message.lower()
        if takes_no_tools or not (status in _RETRIED or status >= 500):
            raise RefusedError(status, message)
        asked_s = parse_retry_after(error.response.headers)
        if asked_s is not None and asked_s > MAX_WAIT_S:
            raise PolicyError(
                f"endpoint {self.url} asks to wait {asked_s:.0f} s ({status}: {message})", "Try again later."
            )
        return asked_s

    def _wait(self, attempt: int, asked_s: float | None, reason: str, deadline: float | None) -> None:
        backoff_s = min(60.0, self._options.backoff_s * 2**attempt) * random.uniform(0.75, 1.25)
        wait_s = backoff_s if asked_s is None else asked_s
        if deadline is not None and time.monotonic() + wait_s >= deadline:
            raise PolicyError(f"endpoint {self.url} {reason}, and the time limit leaves no retry")
        _log.warning("endpoint %s %s; retry %d in %.1f s", self.url, reason, attempt + 1, wait_s)
        time.sleep(wait_s)

    def _time_limit_s(self, deadline: float | None) -> float:
        left_s = self._options.timeout_s if deadline is None else deadline - time.monotonic()
        return max(0.1, min(self._options.timeout_s, left_s))


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``retry-after-ms`` or ``retry-after`` (seconds or an HTTP date), if any."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if 0 <= seconds < 1e9:
            return seconds
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _raise_error_body(data: Any) -> None:
    """Some routers answer 200 with an error inside."""
    error = data.get("error") if isinstance(data, dict) else None
    if not error or (isinstance(data, dict) and data.get("choices")):
        return
    message = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    text = str(message or error)[:300]
    if isinstance(code, int) and 400 <= code < 500 and code not in _RETRIED:
        raise RefusedError(code, text)
    raise NonsenseError(f"an error: {text}")


def _words(error: Any) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail") or body.get("error") or error.message
    return " ".join(str(message).split())[:300]


def _http_errors(openai: Any) -> tuple[type[BaseException], ...]:
    """Errors of the HTTP library beneath the client, whichever it is (httpx or its successor)."""
    base = next(
        c for c in openai.DefaultHttpxClient.__mro__ if c.__module__.split(".")[0].startswith("httpx")
    )
    library = importlib.import_module(base.__module__.split(".")[0])
    return (library.HTTPError, library.StreamError, openai.APIConnectionError)
