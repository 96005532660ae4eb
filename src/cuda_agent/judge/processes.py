"""The judge's side of a worker process: start it, ask it, know how it died.

Nothing a worker answers is executed or trusted to raise a verdict.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.channel import Channel, ChannelClosed, plain_text
from cuda_agent.judge.exchange import Block, Plan
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.result import Fault
from cuda_agent.sandbox.process import Limits, clean_env, spawn
from cuda_agent.sandbox.process_tree import processor_seconds
from cuda_agent.sandbox.scratch import Scratch
from cuda_agent.sandbox.view import View

_log = logging.getLogger(__name__)

_START_LIMIT_S = 120.0
_FILE_LIMIT_BYTES = 1 << 30
_TMP_BYTES = 1 << 30
_MEMORY_SHARE = 0.9  # of this machine's, for one worker: what is over it would take others down
_TAIL_BYTES = 2000


class WorkerError(Exception):
    """A worker answered that it could not do what was asked.

    Attributes:
        kind: why.
        trace: last frames, for people.
    """

    def __init__(self, kind: FailureKind, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class WorkerDied(Exception):
    """A worker's process ended, or was killed at its time limit.

    Attributes:
        fault: how.
        killed_from_outside: by SIGKILL, and not for want of memory. A process can send that to itself
            too: of a candidate it is a crash like any other.
    """

    def __init__(self, fault: Fault, message: str, *, killed_from_outside: bool = False) -> None:
        super().__init__(message)
        self.fault = fault
        self.killed_from_outside = killed_from_outside


class WorkerProcess:
    """A worker in a sandbox of its own, with its channel and a scratch folder that goes with it.

    The folder is the judge's to fill; where there are namespaces the worker sees it read-only.

    Args:
        script: in this folder, or a path.
        env: added to the clean environment.
        label: for messages.
        view: what it sees beside the scratch folder.
        large_blocks: it makes shared memory as large as this machine's memory holds (which the kernel counts
            as a file), not only small ones.
        memory_bytes: it may use; nearly all of this machine's when left out.
    """

    def __init__(
        self,
        script: str | Path,
        *,
        env: Mapping[str, str],
        label: str,
        view: View | None = None,
        large_blocks: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        view = view or View()
        self.label = label
        self._folder = Scratch()
        self.scratch = self._folder.path
        ours, theirs = socket.socketpair()
        self._log = (self.scratch / "log").open("wb")
        try:
            self._process = spawn(
                [
                    sys.executable,
                    "-P",
                    "-s",
                    "-B",
                    str(Path(__file__).parent / script),
                    str(theirs.fileno()),
                ],
                cwd=self.scratch,
                env=clean_env({**env, "HOME": str(self.scratch), "TMPDIR": str(self.scratch)}),
                limits=Limits(
                    file_bytes=_memory_bytes() if large_blocks else _FILE_LIMIT_BYTES,
                    tmp_bytes=_TMP_BYTES,
                    processes=512 + 64 * (os.cpu_count() or 1),  # threads count too
                    memory_bytes=memory_bytes or _memory_bytes(),
                ),
                view=replace(view, owned=(*view.owned, self.scratch)),
                pass_fds=[theirs.fileno()],
                stdout=self._log,
                stderr=self._log,
            )
        except OSError as error:
            ours.close()
            raise InfrastructureError(f"cannot start the {label}: {error}") from None
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self.closed = False

    def ask(
        self, op: str, *, limit_s: float, fds: Sequence[int] = (), **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a message and wait for its answer.

        Returns:
            The answer and the descriptors that came with it (the caller's).

        Raises:
            WorkerError: the worker answered with an error.
            WorkerDied: it crashed, or did not answer within ``limit_s`` seconds.
        """
        self.begin(op, fds=fds, **fields)
        return self.finish(op, limit_s=limit_s)

    def begin(self, op: str, *, fds: Sequence[int] = (), **fields: Any) -> None:
        """Send a message whose answer :meth:`finish` collects."""
        try:
            self._channel.send({"op": op, **fields}, fds)
        except ChannelClosed:
            raise self._death(op) from None

    def finish(self, op: str, *, limit_s: float) -> tuple[dict[str, Any], list[int]]:
        """Wait for the answer to :meth:`begin`; returns and raises as :meth:`ask`."""
        start = time.monotonic()
        try:
            answer, received = self._channel.receive(limit_s)
            _log.debug("%s: %s took %.3f s", self.label, op, time.monotonic() - start)
        except TimeoutError:
            self.close()
            raise WorkerDied(Fault.TIME_OUT, f"no answer to {op!r} within {limit_s:.0f} s") from None
        except ChannelClosed:
            raise self._death(op) from None
        error = answer.get("error")
        if error is not None:
            close_all(received)
            told = error if isinstance(error, dict) else {}
            kind, message, trace = (plain_text(told.get(key)) for key in ("kind", "message", "trace"))
            raise WorkerError(FailureKind.of(kind), message, trace)
        return answer, received

    def _death(self, op: str) -> WorkerDied:
        status = self._process.wait(5.0)
        tail = self._tail()
        out_of_memory = status is not None and self._process.ran_out_of_memory()
        self.close()
        if not self._process.was_launched():
            raise InfrastructureError(f"the sandbox of the {self.label} failed{tail}")
        if status is None or status >= 0:
            return WorkerDied(Fault.CRASH, f"the process ended by itself during {op!r}{tail}")
        name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
        killed = -status == signal.SIGKILL
        fault = Fault.OUT_OF_MEMORY if killed and out_of_memory else Fault.CRASH
        return WorkerDied(
            fault,
            f"the process died of {name} during {op!r}{tail}",
            killed_from_outside=killed and not out_of_memory,
        )

    def _tail(self) -> str:
        with suppress(OSError):
            data = (self.scratch / "log").read_bytes()[-_TAIL_BYTES:]
            lines = data.decode(errors="replace").strip().splitlines()
            if any(line.startswith("Traceback ") for line in lines):
                lines = lines[-1:]  # the exception's own line
            if lines:
                return "; it printed: " + "\n".join(lines)
        return ""

    def wait_ready(self) -> None:
        """Wait until the process has imported what it needs (seconds, and no device is touched)."""
        self.ask("map", limit_s=_START_LIMIT_S, slots=[])

    def map_slots(self, blocks: Mapping[str, Block], *, device: str) -> None:
        """Share blocks with the worker under slot names.

        Args:
            blocks: by slot name.
            device: the worker's name for the device that device blocks lie on.
        """
        slots = [
            {"name": name, "nbytes": block.nbytes, "device": "cpu" if block.device == "cpu" else device}
            for name, block in blocks.items()
        ]
        fds = [block.fd for block in blocks.values()]
        _, received = self.ask("map", limit_s=_START_LIMIT_S, fds=fds, slots=slots)
        close_all(received)

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return not self.closed and self._process.poll() is None

    def processor_s(self) -> float:
        """Seconds of processor time that the process and its threads have taken."""
        return processor_seconds(self._process.pid)

    def close(self) -> None:
        """Kill the process and its group, remove its scratch folder; may run twice."""
        if self.closed:
            return
        self.closed = True
        self._process.kill_group()
        self._channel.close()
        self._log.close()
        self._folder.close()


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with an answer."""
    for fd in fds:
        os.close(fd)


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total * _MEMORY_SHARE)


def open_block(answer: Mapping[str, Any], fds: Sequence[int], *, device: str) -> tuple[Plan, Block]:
    """The block that came with an answer, and its plan.

    Args:
        answer, fds: from :meth:`WorkerProcess.ask`.
        device: the judge's name for the device that device blocks lie on.

    Raises:
        InfrastructureError: the answer has no usable block.
    """
    try:
        [fd] = fds
        where = "cpu" if answer["block_device"] == "cpu" else device
        return answer["plan"], Block(answer["nbytes"], device=where, fd=fd)
    except (ValueError, KeyError, OSError) as error:
        raise InfrastructureError(f"a worker sent no usable memory: {error}") from None
