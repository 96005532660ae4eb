"""What an engine is asked, what it answers, and the engine itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cuda_agent.errors import UsageError


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP_ID = "stop_id"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CONTEXT = "context"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class SamplingParams:
    """How one completion is sampled. Nothing else reshapes the distribution: no penalties, no top-k."""

    max_tokens: int = 1024
    """Longest completion, tokens."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token and reports its log-probability at 1."""
    top_p: float = 1.0
    """Only the smallest set of tokens with at least this probability is drawn from."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the completion; they are part of it."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end it, once the decoded completion holds one; their tokens are part of it."""
    seed: int | None = None
    """Of this completion alone, whatever else is generated beside it; drawn when ``None``."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}", "Give 1 or more.")
        if not 0.0 <= self.temperature <= 100.0:
            raise UsageError(f"temperature is {self.temperature}", "Give a number from 0 to 100.")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p is {self.top_p}", "Give a number above 0, up to 1.")
        if "" in self.stop_strings:
            raise UsageError("a stop string is empty", "Leave it out.")


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt.

    Attributes:
        prompt_ids: the whole context, as ids.
        params: how it is continued.
        deadline: ``time.monotonic`` after which no further token is drawn.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise UsageError("an empty prompt", "Give at least one token.")


@dataclass(frozen=True)
class Completion:
    """What was sampled.

    Attributes:
        ids: tokens, those that stopped it included.
        logprobs: log-probability of each under the distribution it was drawn from; as many.
        finish: why it ended.
        policy_version: of the weights that sampled it.
        num_reused: prompt tokens whose keys and values were still there.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    policy_version: str = ""
    num_reused: int = 0

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probabilities")


class GenerationEngine(Protocol):
    """Generates for many callers at once; every method may be called from any thread."""

    policy_version: str
    """Written beside the tokens."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request.

        Raises (from the future):
            UsageError: the prompt does not fit, or the engine cannot sample as asked.
            PolicyError: the device has no memory left, or the server fails.
        """

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises:
            UsageError, PolicyError: of the first request that failed, as :meth:`submit`.
        """

    def weights_changed(self, policy_version: str) -> None:
        """Say that the weights are new: nothing computed with the old ones is used again."""

    def close(self) -> None:
        """Let go of threads, memory and connections; may run twice."""
