"""Judges of recent tasks, kept warm: their reference runners, spare candidates and baselines.

Evicted by count, and by the memory of this process and its descendants. Does not cover: device memory,
which the count bounds (a warm CUDA judge holds two contexts and its task's tensors).
"""

from __future__ import annotations

import os
from collections import OrderedDict

from cuda_agent.judge.session import JudgeSession
from cuda_agent.pool.contract import JudgeRequest, session_key
from cuda_agent.sandbox.process_tree import resident_bytes


class WarmSessions:
    """Least recently used first out.

    Args:
        limit: sessions kept.
        memory_bytes: resident memory above which all but the latest are closed.
    """

    def __init__(self, *, limit: int, memory_bytes: int) -> None:
        self._limit, self._memory_bytes = max(1, limit), memory_bytes
        self._sessions: OrderedDict[str, JudgeSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def keys(self) -> list[str]:
        """Keys of the warm tasks, oldest first."""
        return list(self._sessions)

    def get(self, request: JudgeRequest) -> JudgeSession:
        """The session of a request's task and contract, opened where there is none.

        Raises:
            TaskError, ToolchainError: see :class:`cuda_agent.judge.session.JudgeSession`.
        """
        key = session_key(request)
        if key not in self._sessions:
            while len(self._sessions) >= self._limit:
                self.drop(next(iter(self._sessions)))
            self._sessions[key] = JudgeSession(request.task, request.config, task_given=request.task_given)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def drop(self, key: str) -> None:
        """Close one, if it is there."""
        if (session := self._sessions.pop(key, None)) is not None:
            session.close()

    def trim(self) -> None:
        """Close the oldest ones while memory is over the limit; the latest stays."""
        while len(self._sessions) > 1 and resident_bytes(os.getpid()) > self._memory_bytes:
            self.drop(next(iter(self._sessions)))

    def close(self) -> None:
        """Close all; may run twice."""
        for key in self.keys:
            self.drop(key)
