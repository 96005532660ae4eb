"""A local OpenAI-compatible endpoint that plays a recorded model, with faults where wanted.

    python -m cuda_agent.agent.recorded_server FILE --port 8000 --fault 2:rate_limit:0.5

FILE is a trajectory, or a script (a JSON list, or one JSON object a line) of answers::

    {"text": "...", "calls": [{"name": "Bash", "arguments": {"command": "ls"}}]}
    {"fault": "server_error"}        comes before the next answer, once

Which answer is given follows from the request alone (the number of assistant messages in it), so any
number of episodes can be played at once, and a resumed one goes on where it stopped. A fault happens once.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cuda_agent.agent.policy import Action
from cuda_agent.agent.recording import (
    Fault,
    FaultKind,
    Recording,
    completion,
    count_tokens,
    load_recording,
    parse_fault,
)
from cuda_agent.errors import CudaAgentError, UsageError

_MAX_REQUEST_BYTES = 64 * 2**20


class RecordedServer:
    """Serves a recording on this machine until closed; a context manager.

    Args:
        port: 0 takes a free one.
        takes_tools: ``False`` refuses requests with tools, as vLLM without a tool parser does.
        context_limit: requests estimated longer are refused with ``context_length_exceeded``, tokens.
        api_key: refuse other keys.

    Attributes:
        requests: bodies of all chat requests, refused ones too, in order.
        url: base URL for a client.

    Raises:
        UsageError: the port is taken.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "recorded",
        takes_tools: bool = True,
        context_limit: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self.recording = recording
        self.model = model
        self.takes_tools = takes_tools
        self.context_limit = context_limit
        self.api_key = api_key
        self.requests: list[dict[str, Any]] = []
        self.closing = threading.Event()
        self._pending = {number: list(faults) for number, faults in recording.faults.items()}
        self._lock = threading.Lock()
        try:
            self._http = _Server((host, port), _Handler)
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}", "Try --port 0.") from None
        self._http.recorded = self
        self.url = f"http://{host}:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def choose(self, body: dict[str, Any]) -> tuple[Fault | None, Action | Fault]:
        """Fault due, if any, and the answer that comes after the messages of ``body``."""
        number = sum(m.get("role") == "assistant" for m in body["messages"])
        with self._lock:
            pending = self._pending.get(number)
            fault = pending.pop(0) if pending else None
        answers = self.recording.answers
        return fault, answers[number] if number < len(answers) else Action("The recording ends here.")

    def wait(self) -> None:
        """Serve until closed."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving; may run twice."""
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    recorded: RecordedServer


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: what was asked is in ``RecordedServer.requests``."""

    def do_GET(self) -> None:
        recorded = self.server.recorded
        if self.path.rstrip("/") == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": recorded.model, "object": "model"}]})
        elif self.path == "/health":
            self._send(200, {"status": "ok"})
        else:
            self._send(404, _error(f"no such path: {self.path}", "not_found"))

    def do_POST(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the client gave up
            try:
                body = self._read()
                fault, answer = self.server.recorded.choose(body)
            except _Refused as error:
                self._send(error.status, _error(str(error), error.code))
                return
            response = completion(answer, body, model=self.server.recorded.model)
            if fault is None:
                self._send(200, response)
            else:
                self._fail(fault, response)

    def _read(self) -> dict[str, Any]:
        recorded = self.server.recorded
        length = int(self.headers.get("content-length") or 0)
        if length > _MAX_REQUEST_BYTES:
            raise _Refused(413, "the request is too large")
        raw = self.rfile.read(length)
        if recorded.api_key and self.headers.get("authorization") != f"Bearer {recorded.api_key}":
            raise _Refused(401, "incorrect API key provided", "invalid_api_key")
        if self.path.rstrip("/") != "/v1/chat/completions":
            raise _Refused(404, f"no such path: {self.path}", "not_found")
        try:
            body = json.loads(raw)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise _Refused(400, f"the body is not JSON: {error}") from None
        if isinstance(body, dict):
            recorded.requests.append(body)
        _check(body, recorded)
        checked: dict[str, Any] = body
        return checked

    def _fail(self, fault: Fault, response: dict[str, Any]) -> None:
        value = fault.value
        data = json.dumps(response).encode()
        if fault.kind is FaultKind.RATE_LIMIT:
            after = {"retry-after": f"{1.0 if value is None else value:g}"}
            self._send(429, _error("rate limit reached", "rate_limit_exceeded"), after)
        elif fault.kind is FaultKind.SERVER_ERROR:
            self._send(int(value or 500), _error("the engine failed", "server_error"))
        elif fault.kind is FaultKind.CUT_BODY:
            self._send_bytes(200, data[: len(data) // 2])
        elif fault.kind is FaultKind.EMPTY_CHOICES:
            self._send(200, {**response, "choices": []})
        elif fault.kind is FaultKind.SLOW:
            self.server.recorded.closing.wait(30.0 if value is None else value)
            self._send(200, response)
        elif fault.kind is FaultKind.DROP:
            self._drop(data)
        else:
            self._endless(data, 60.0 if value is None else value)

    def _drop(self, data: bytes) -> None:
        self._head(200, len(data), {})
        self.wfile.write(data[: len(data) // 2])
        # Linger 0: the client sees a reset, as when a server process dies.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _endless(self, data: bytes, limit_s: float) -> None:
        self._head(200, 1 << 40, {})
        ends = time.monotonic() + limit_s
        self.wfile.write(data[:-2])
        while time.monotonic() < ends and not self.server.recorded.closing.wait(0.01):
            self.wfile.write(b" " * 4096)
        self.close_connection = True

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self._send_bytes(status, json.dumps(body).encode(), headers)

    def _send_bytes(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, len(data), headers or {})
        self.wfile.write(data)

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _check(body: Any, recorded: RecordedServer) -> None:
    """Refuse what a real endpoint refuses."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _Refused(400, "messages must be a list of objects, and not empty")
    if body.get("stream"):
        raise _Refused(400, "this endpoint does not stream")
    if body.get("tools") and not recorded.takes_tools:
        raise _Refused(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser')
    for problem in _unanswered(messages):
        raise _Refused(400, problem)
    tokens = count_tokens(messages)
    if recorded.context_limit is not None and tokens > recorded.context_limit:
        message = (
            f"this model's maximum context length is {recorded.context_limit} tokens, {tokens} were given"
        )
        raise _Refused(400, message, "context_length_exceeded")


def _unanswered(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each tool call must be answered right after it, and each answer must belong to a call."""
    waiting: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield f"tool message answers no call: {message.get('tool_call_id')}"
            waiting.discard(str(message.get("tool_call_id")))
            continue
        if waiting:
            yield f"tool calls without an answer: {sorted(waiting)}"
        waiting = {str(call.get("id")) for call in message.get("tool_calls") or ()}
    if waiting:
        yield f"tool calls without an answer: {sorted(waiting)}"


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "code": code}}


def _fault_option(text: str) -> tuple[int, Fault]:
    number, _, rest = text.partition(":")
    kind, _, value = rest.partition(":")
    if not number.isdecimal():
        raise UsageError(f"bad fault {text!r}", "Write NUMBER:KIND or NUMBER:KIND:VALUE.")
    return int(number), parse_fault(kind, value or None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a file until Ctrl-C; prints the base URL first."""
    parser = argparse.ArgumentParser(prog="recorded_server", description="Plays a recorded model over HTTP.")
    parser.add_argument("file", type=Path, help="trajectory or script")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--model", default="recorded")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NUMBER:KIND[:VALUE]", help=", ".join(FaultKind)
    )
    parser.add_argument("--no-tools", action="store_true", help="refuse requests with tools")
    parser.add_argument("--context-limit", type=int, help="tokens")
    options = parser.parse_args(arguments)
    try:
        recording = load_recording(options.file, [_fault_option(text) for text in options.fault])
        server = RecordedServer(
            recording,
            host=options.host,
            port=options.port,
            model=options.model,
            takes_tools=not options.no_tools,
            context_limit=options.context_limit,
        )
    except CudaAgentError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with server:
        print(server.url, flush=True)
        with suppress(KeyboardInterrupt):
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
