"""Every error a user can meet, in one tree.

::

    CudaAgentError            one line: what went wrong, and the remedy
    ├── UsageError            bad option, bad file name, bad target
    ├── TaskError             the reference cannot be judged (does not import, no Model, random, too large)
    ├── WorkspaceError        a workspace lacks a file or holds what it must not
    ├── ToolchainError        a compiler, ninja or a header is missing
    ├── PolicyError           a model endpoint is down, refuses, or answers nonsense
    ├── PoolError             a judging pool is down, refuses the token, or has no room
    └── InfrastructureError   our own side failed: a worker lost, a disk full, a GPU gone

A wrong kernel is a :class:`cuda_agent.result.Result`, never an exception; a broken sandbox is an
exception, never a result.
"""

from __future__ import annotations


class CudaAgentError(Exception):
    """Base of all errors meant for a user.

    Args:
        cause: what went wrong, one line, no trailing full stop.
        remedy: what to do about it, one line; empty when there is nothing to do.
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = " ".join(cause.split())
        self.remedy = " ".join(remedy.split())
        super().__init__(f"{self.cause}. {self.remedy}" if self.remedy else self.cause)


class UsageError(CudaAgentError):
    """A bad option, file name or target."""

    exit_code = 2


class TaskError(CudaAgentError):
    """The reference module cannot be judged; the task is refused."""


class WorkspaceError(CudaAgentError):
    """A workspace lacks a file, or holds something it must not."""

    exit_code = 2


class ToolchainError(CudaAgentError):
    """A compiler, build tool or header that the backend needs is missing."""


class PolicyError(CudaAgentError):
    """A model endpoint is down, refuses, or answers nonsense."""


class PoolError(CudaAgentError):
    """A judging pool is down, refuses the token, or has no room."""


class InfrastructureError(CudaAgentError):
    """Our own side failed: a worker lost, a disk full, a GPU gone. Never a reward."""
