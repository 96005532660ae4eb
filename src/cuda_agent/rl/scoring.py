"""Where verdicts in training come from: the judge here, a pool of judges, or a function that is named."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.errors import PoolError, UsageError, WorkspaceError
from cuda_agent.pool.contract import JudgeRequest, Pool
from cuda_agent.pool.remote import judge_by, open_pool
from cuda_agent.pool.warm import WarmSessions
from cuda_agent.result import Result, Stage
from cuda_agent.rl.training_config import JudgeTable
from cuda_agent.runs.conclusion import nothing_written
from cuda_agent.task import Task
from cuda_agent.workspace.opening import unfreezable
from cuda_agent.workspace.snapshot import Snapshot

MAX_SESSIONS = 4
"""Tasks whose reference stays warm, as long as they take no more memory than this:"""
_MEMORY_BYTES = 16 << 30


@dataclass(frozen=True)
class Answer:
    """What an episode left.

    Attributes:
        text: the policy's last words.
        snapshot: the candidate's files; ``None`` where there is none.
    """

    text: str
    snapshot: Snapshot | None


class Scorer(Protocol):
    """Gives verdicts. Called from several threads."""

    def score(self, task: Task, answer: Answer, scope: Scope) -> Result:
        """The verdict on an answer; ``infrastructure`` set where our own side failed."""
        ...

    def close(self) -> None:
        """Free processes; may run twice."""
        ...


class _ByVerdict:
    """A scorer whose verdicts come from a judge.

    A candidate that was judged before, on the same task and to the same scope, is not judged again; what
    our own side failed on is.
    """

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self._known: dict[tuple[str, str, Scope], Result] = {}

    def score(self, task: Task, answer: Answer, scope: Scope) -> Result:
        """See :class:`Scorer`."""
        if answer.snapshot is None:
            return nothing_written(task, self._config, answer.text[-400:])
        key = (task.hash, answer.snapshot.hash, scope)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            result = self._verdict(JudgeRequest(task, answer.snapshot, self._config, scope))
        except WorkspaceError as error:
            result = unfreezable(str(error), scope, task, task_given=True)
        if result.infrastructure is None:
            self._known[key] = result
        return result

    def _verdict(self, request: JudgeRequest) -> Result:
        raise NotImplementedError


class JudgeScorer(_ByVerdict):
    """The judge of this machine; one verdict at a time, references of the last tasks kept warm."""

    def __init__(self, config: JudgeConfig) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._sessions = WarmSessions(limit=MAX_SESSIONS, memory_bytes=_MEMORY_BYTES)

    def _verdict(self, request: JudgeRequest) -> Result:
        with self._lock:
            result = self._sessions.get(request).judge(request.snapshot, request.scope)
            self._sessions.trim()
            return result

    def close(self) -> None:
        """See :class:`Scorer`."""
        with self._lock:
            self._sessions.close()


class PoolScorer(_ByVerdict):
    """A pool of judges (``cuda-agent serve``): as many verdicts at once as it has devices.

    What the pool could not do, and a pool that is gone, is our own side's fault: the episode is dropped.
    """

    def __init__(self, pool: Pool, config: JudgeConfig) -> None:
        super().__init__(config)
        self._pool = pool

    def _verdict(self, request: JudgeRequest) -> Result:
        try:
            return judge_by(self._pool, request)
        except PoolError as error:
            return Result(Stage.BUILD, infrastructure=str(error), task_hash=request.task.hash)

    def close(self) -> None:
        """See :class:`Scorer`."""
        self._pool.close()


class FunctionScorer:
    """Verdicts of a function ``(task, answer) -> Result``, such as a cheap one for tests of the stages."""

    def __init__(self, function: Callable[[Task, Answer], Result]) -> None:
        self._function = function

    def score(self, task: Task, answer: Answer, scope: Scope) -> Result:  # noqa: ARG002
        """See :class:`Scorer`; the scope makes no difference."""
        return self._function(task, answer)

    def close(self) -> None:
        """See :class:`Scorer`."""


def make_scorer(table: JudgeTable) -> Scorer:
    """The scorer of a configuration.

    Raises:
        UsageError: the named function cannot be imported.
    """
    if table.scorer == "judge":
        return JudgeScorer(judge_config(table))
    if table.scorer.startswith(("http://", "https://")):
        return PoolScorer(open_pool(table.scorer), judge_config(table))
    name, _, attribute = table.scorer.partition(":")
    try:
        function = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"judge.scorer is {table.scorer!r}: {error}",
            "Write judge, http://HOST:PORT, or package.module:function.",
        ) from None
    return FunctionScorer(cast(Callable[[Task, Answer], Result], function))


def judge_config(table: JudgeTable) -> JudgeConfig:
    """The judge's settings in a configuration of training."""
    return JudgeConfig(device=table.device, track=table.track, precision=table.precision, gpu=table.gpu)
