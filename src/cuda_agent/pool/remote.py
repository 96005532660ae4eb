"""Verdicts for the commands: by a judge here, or by a pool that ``--pool URL`` names. Same results."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.errors import CudaAgentError, PoolError
from cuda_agent.pool.client import HttpPool, read_token
from cuda_agent.pool.contract import JobState, JudgeRequest, NoSuchJobError, Pool
from cuda_agent.pool.wire import error_from_dict
from cuda_agent.result import Result
from cuda_agent.task import Task
from cuda_agent.workspace.opening import opened
from cuda_agent.workspace.snapshot import Snapshot

_POLL_S = 20.0
_MAX_SUBMISSIONS = 5
Say = Callable[[str], None]


def open_pool(url: str) -> HttpPool:
    """The pool at an address, with the token of the environment; nothing is asked yet.

    Raises:
        UsageError: no token, or no address.
    """
    return HttpPool(url, read_token())


def judge_by(
    pool: Pool, request: JudgeRequest, *, say: Say | None = None, caller: str | None = None
) -> Result:
    """One verdict by a pool. Whatever ends the wait (Ctrl-C) cancels the job.

    A pool that was restarted meanwhile forgot the job: it is submitted again.

    Raises:
        UsageError, TaskError, ToolchainError: as the judge itself raises them.
        PoolError: the pool does not answer, refuses, is full, or somebody else cancelled the job.
    """
    job_id = ""
    for attempt in range(_MAX_SUBMISSIONS):
        job_id = secrets.token_hex(16)
        try:
            pool.submit(request, caller=caller or default_caller(), job_id=job_id)
            return _followed(pool, job_id, say or _silent)
        except NoSuchJobError:
            if attempt == _MAX_SUBMISSIONS - 1:
                raise
        except BaseException:
            with suppress(CudaAgentError):
                pool.cancel(job_id)
            raise
    raise PoolError(f"the pool forgot job {job_id}")


def _followed(pool: Pool, job_id: str, say: Say) -> Result:
    seen = 0
    while True:
        job = pool.job(job_id, wait_s=_POLL_S, seen=seen)
        for line in job.lines_after(seen):
            say(line)
        seen = job.num_lines
        if job.result is not None:
            return job.result
        if job.error is not None:
            raise error_from_dict(job.error)
        if job.state is JobState.CANCELLED:
            raise PoolError("the job was cancelled in the pool", "Judge again.")


class PoolSession:
    """Stands where a :class:`~cuda_agent.judge.session.JudgeSession` does, and asks a pool.

    Args:
        pool: who judges.
        task: the reference.
        config: contract; the GPU is the pool's to choose.
        task_given: the reference came from a task file.
    """

    last_saved = None
    """A pool sends verdicts, not the tensors of a failed check."""

    def __init__(self, pool: Pool, task: Task, config: JudgeConfig, *, task_given: bool = True) -> None:
        self._pool, self._task, self._config, self._task_given = pool, task, config, task_given

    def judge(self, snapshot: Snapshot, scope: Scope, say: Say | None = None) -> Result:
        """Judge one candidate.

        Raises:
            CudaAgentError: see :func:`judge_by`.
        """
        request = JudgeRequest(self._task, snapshot, self._config, scope, self._task_given)
        return judge_by(self._pool, request, say=say)

    def close(self) -> None:
        """Nothing is held."""


def reach_verdict(
    workspace: Path,
    *,
    task: Task | None = None,
    config: JudgeConfig,
    scope: Scope = Scope.FULL,
    progress: Say | None = None,
    snapshot: Snapshot | None = None,
    pool: str = "",
) -> Result:
    """:func:`cuda_agent.judge.entry.judge`, or the same by the pool at the address ``pool``.

    Raises:
        CudaAgentError: see there and :func:`judge_by`.
    """
    if not pool:
        from cuda_agent.judge.entry import judge

        return judge(workspace, task=task, config=config, scope=scope, progress=progress, snapshot=snapshot)
    reference, frozen = opened(workspace, task=task, snapshot=snapshot, scope=scope)
    if isinstance(frozen, Result):
        return frozen
    session = PoolSession(open_pool(pool), reference, config, task_given=task is not None)
    return session.judge(frozen, scope, progress)


def default_caller() -> str:
    """This process, for taking turns: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _silent(_: str) -> None:
    pass
