"""Why a worker could not do what it was asked. Standard library only: both sides of the channel use it."""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Kind of a worker's answer that is an error.

    ``TASK``, ``RANDOM`` (not a function of its inputs), ``TOO_LARGE``: the reference is refused.
    ``CANDIDATE``: the candidate is refused (no ModelNew, another state_dict, no plain tensors). The others
    are exceptions of the code that ran.
    """

    TASK = "task"
    RANDOM = "random"
    TOO_LARGE = "too_large"
    CANDIDATE = "candidate"
    OUT_OF_MEMORY = "out_of_memory"
    ILLEGAL_ACCESS = "illegal_access"
    CUDA_ERROR = "cuda_error"
    EXCEPTION = "exception"

    @classmethod
    def of(cls, text: str) -> FailureKind:
        """The kind that a worker names; a name nobody knows, from a worker that lies, is ``EXCEPTION``."""
        return cls(text) if text in tuple(cls) else cls.EXCEPTION
