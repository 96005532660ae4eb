"""The pool's side of one judge: what a worker is, and the one that is a process of this machine.

Ray actors and remote hosts join as further implementations of :class:`Worker`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cuda_agent.errors import CudaAgentError, InfrastructureError
from cuda_agent.pool.contract import JudgeRequest
from cuda_agent.pool.wire import error_from_dict, line_of, request_to_dict
from cuda_agent.result import Result
from cuda_agent.workspace.layout import source_root

_CANCEL_LIMIT_S = 10.0
_CLOSE_LIMIT_S = 20.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Reply:
    """How a job ended on a worker; exactly one of ``result``, ``error``, ``cancelled`` is set.

    Attributes:
        result: the verdict.
        error: why the request cannot be judged.
        cancelled: the caller wanted it no more.
        out_of_use: why the device must not be used any more; empty while it works.
        warm: keys of the tasks this worker keeps warm.
        warm_hit: the task's judge was warm.
    """

    result: Result | None = None
    error: CudaAgentError | None = None
    cancelled: bool = False
    out_of_use: str = ""
    warm: tuple[str, ...] = ()
    warm_hit: bool = False


class Worker(Protocol):
    """Judges one candidate at a time on one device."""

    def judge(
        self, job: str, request: JudgeRequest, *, say: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Reply:
        """Judge; looks at ``cancelled`` at least once a second.

        Raises:
            InfrastructureError: the worker is lost; it must be closed and replaced.
        """

    def close(self) -> None:
        """End it and all that it started; may run twice."""


@dataclass(frozen=True)
class WorkerLimits:
    """What one worker may keep and how long one job may take.

    Attributes:
        sessions: tasks kept warm.
        memory_bytes: resident memory above which older ones are let go.
        job_limit_s: longest job, seconds; past it the worker is taken for hung.
    """

    sessions: int = 3
    memory_bytes: int = 16 << 30
    job_limit_s: float = 1800.0


class WorkerProcess:
    """A judge in a process of its own.

    Raises:
        InfrastructureError: no process can be started.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(limits.sessions), str(limits.memory_bytes)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())}
        env.pop("CUDA_AGENT_POOL_TOKEN", None)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cuda_agent.pool.worker", *words],
                pass_fds=(theirs.fileno(),),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"no judge can be started: {error.strerror}", "Free memory.") from None
        finally:
            theirs.close()
        ours.settimeout(_POLL_S)
        self._connection = ours
        self._buffer = b""

    def judge(
        self, job: str, request: JudgeRequest, *, say: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Reply:
        """See :class:`Worker`."""
        self._send({"judge": request_to_dict(request, search_path=True), "id": job})
        deadline = time.monotonic() + self._limits.job_limit_s
        asked = False
        for message in self._messages():
            if message is not None and "say" in message:
                say(message["say"])
            elif message is not None:
                return _reply(message)
            if cancelled() and not asked:
                asked = True
                self._send({"cancel": job})
                deadline = time.monotonic() + _CANCEL_LIMIT_S
            if time.monotonic() > deadline:
                self.close(at_once=True)
                if asked:
                    return Reply(cancelled=True)
                raise InfrastructureError(f"a judge was still at work after {self._limits.job_limit_s:g} s")
        raise InfrastructureError(f"a judge's process ended unasked ({self._ending()})")

    @property
    def is_alive(self) -> bool:
        """Whether the process is there to take a job."""
        return self._process.poll() is None

    def close(self, *, at_once: bool = False) -> None:
        """See :class:`Worker`; ``at_once`` gives it no time to close by itself."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if at_once else _CLOSE_LIMIT_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.settimeout(60.0)
            self._connection.sendall(line_of(message))
        except OSError:
            raise InfrastructureError(f"a judge's process ended unasked ({self._ending()})") from None
        finally:
            with suppress(OSError):
                self._connection.settimeout(_POLL_S)

    def _messages(self) -> Iterator[dict[str, Any] | None]:
        """Messages as they come, ``None`` whenever none came for a moment; ends with the process."""
        while True:
            line, mark, rest = self._buffer.partition(b"\n")
            if mark:
                self._buffer = rest
                yield json.loads(line)
                continue
            try:
                part = self._connection.recv(1 << 20)
            except TimeoutError:
                yield None
                continue
            except OSError:
                return
            if not part:
                return
            self._buffer += part

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(2.0)
            return f"signal {-status}" if status < 0 else f"status {status}"
        return "its connection broke"


def _reply(message: dict[str, Any]) -> Reply:
    result, error = message.get("result"), message.get("error")
    return Reply(
        result=Result.from_dict(json.loads(result)) if result is not None else None,
        error=error_from_dict(error) if error is not None else None,
        cancelled=bool(message.get("cancelled", False)),
        out_of_use=message.get("out_of_use", ""),
        warm=tuple(message.get("warm", ())),
        warm_hit=bool(message.get("warm_hit", False)),
    )


def _python_path() -> list[str]:
    root = source_root()
    ours = [] if root.name == "site-packages" else [str(root)]
    return [*ours, *filter(None, [os.environ.get("PYTHONPATH")])]
