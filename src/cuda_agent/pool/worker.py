"""One judge of a pool, as a process: ``python -m cuda_agent.pool.worker FD SESSIONS MEMORY_BYTES``.

Lines of JSON over the socket FD. In: ``{"judge": request, "id"}``, ``{"cancel": id}``. Out: ``{"say": line}``
and one of ``{"result", ...}``, ``{"error", ...}``, ``{"cancelled": true}``, each with the sessions kept warm.

All judging happens in the main thread, which lives as long as the process (processes that a session keeps
die with the thread that started them). A second thread reads, so that a cancellation or the end of the
pool's own process interrupts a judgement in the middle, as Ctrl-C does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cuda_agent.errors import CudaAgentError
from cuda_agent.pool.contract import JudgeRequest, session_key
from cuda_agent.pool.warm import WarmSessions
from cuda_agent.pool.wire import error_to_dict, line_of, request_from_dict
from cuda_agent.sandbox.scratch import Scratch

_EXIT_LIMIT_S = 15.0


class _Cancelled(BaseException):
    """Raised in the main thread in the middle of a judgement; no ``except Exception`` may swallow it."""


class Worker:
    """Reads requests, judges them one at a time, answers."""

    def __init__(self, connection: socket.socket, *, sessions: int, memory_bytes: int) -> None:
        self._connection = connection
        self._warm = WarmSessions(limit=sessions, memory_bytes=memory_bytes)
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._current: str | None = None
        self._cancelled: set[str] = set()
        self._sending = self._late = False
        self._files = Scratch()

    def run(self) -> None:
        """Serve until the pool goes away."""
        signal.signal(signal.SIGUSR1, self._interrupt)
        threading.Thread(target=self._read, name="pool-worker-read", daemon=True).start()
        try:
            while (message := self._inbox.get()) is not None:
                self._answer(message)
        except _Cancelled:
            pass  # the pool went away in the middle
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            self._warm.close()
            self._files.close()

    # -- reader -------------------------------------------------------------------------------

    def _read(self) -> None:
        with suppress(OSError, ValueError), self._connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                message = json.loads(line)
                if "cancel" in message:
                    self._cancel(message["cancel"])
                else:
                    self._inbox.put(message)
        self._inbox.put(None)
        self._cancel(None)
        time.sleep(_EXIT_LIMIT_S)
        os._exit(1)  # closing hangs: descendants die with us

    def _cancel(self, job: str | None) -> None:
        """Interrupt this job, or whatever runs when the pool is gone."""
        with self._lock:
            if job is not None and job != self._current:
                self._cancelled = {job}  # the next one, if it is still on its way
            if self._current is None or job not in (None, self._current):
                return
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)

    def _interrupt(self, _signal: int, _frame: object) -> None:
        # No lock here: the main thread may hold it. A late signal finds no current job and does nothing.
        if self._sending:
            self._late = True  # half a line would garble all that follow
        elif self._current is not None:
            self._current = None
            raise _Cancelled

    # -- main thread --------------------------------------------------------------------------

    def _answer(self, message: Mapping[str, Any]) -> None:
        job = str(message["id"])
        key = ""
        try:
            with self._lock:
                if job in self._cancelled:
                    raise _Cancelled
                self._current = job
            request = request_from_dict(message["judge"], folder=self._files.path / job)
            key = session_key(request)
            reply = self._judged(request)
            self._current = None
        except _Cancelled:
            self._current = None
            self._warm.drop(key)
            reply = {"cancelled": True}
        except CudaAgentError as error:
            self._current = None
            self._warm.drop(key)
            reply = {"error": error_to_dict(error)}
        self._cancelled.discard(job)
        self._warm.trim()
        self._send({**reply, "warm": self._warm.keys})

    def _judged(self, request: JudgeRequest) -> dict[str, Any]:
        hit = session_key(request) in self._warm.keys
        session = self._warm.get(request)
        result = session.judge(request.snapshot, request.scope, lambda line: self._send({"say": line}))
        if result.infrastructure is not None:
            self._warm.drop(session_key(request))
        return {"result": result.to_json(), "out_of_use": session.out_of_use, "warm_hit": hit}

    def _send(self, message: Mapping[str, Any]) -> None:
        self._sending = True
        try:
            self._connection.sendall(line_of(message))
        except OSError:
            raise _Cancelled from None
        finally:
            self._sending = False
        if self._late:
            self._late = False
            self._interrupt(signal.SIGUSR1, None)


def main() -> None:
    """Entry of the process."""
    # Ctrl-C in the pool's terminal is the pool's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fd, sessions, memory = (int(word) for word in sys.argv[1:4])
    with socket.socket(fileno=fd) as connection:
        Worker(connection, sessions=sessions, memory_bytes=memory).run()


if __name__ == "__main__":
    main()
