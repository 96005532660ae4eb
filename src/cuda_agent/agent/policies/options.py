"""Options of the model policies, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.errors import UsageError


class ToolFormat(StrEnum):
    """How a model writes tool calls.

    ``AUTO``: natively where the endpoint or the chat template takes tools, as text otherwise.
    """

    AUTO = "auto"
    NATIVE = "native"
    TEXT = "text"


@dataclass(frozen=True)
class PolicyOptions:
    """Options of ``chat`` and ``local``; each ignores what is not its own."""

    temperature: float | None = None
    """Sampling temperature; ``None`` leaves it to the endpoint (local: 1.0); 0 is greedy."""
    top_p: float | None = None
    """Nucleus sampling; ``None`` leaves it to the endpoint (local: 1.0, off)."""
    max_tokens: int = 16_384
    """Longest answer, tokens; less where the context has less room."""
    tool_format: ToolFormat = ToolFormat.AUTO
    """How tool calls are written."""
    seed: int | None = None
    """Seed of the sampler, where there is one."""
    timeout_s: float = 600.0
    """chat: longest wait for one answer, seconds."""
    max_retries: int = 6
    """chat: retries of one request after 429, 5xx, time-outs and broken answers."""
    backoff_s: float = 1.0
    """chat: wait before the first retry, seconds; doubles each time, unless the endpoint says how long."""
    prompt_price: float | None = None
    """chat: USD for a million prompt tokens."""
    completion_price: float | None = None
    """chat: USD for a million completion tokens."""
    cached_price: float | None = None
    """chat: USD for a million prompt tokens from the endpoint's cache; as ``prompt_price`` if unset."""
    keep_reasoning: bool = False
    """chat: send the model's earlier reasoning back to it (``reasoning_content``), as some models want."""
    device: str = "auto"
    """local: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    dtype: str = "auto"
    """local: dtype of the weights (``auto``: as stored), such as ``bfloat16``."""
    policy_version: str = ""
    """local: version of the weights, written beside the tokens; the path's name when empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_format", _tool_format(self.tool_format))
        if self.temperature is not None and not 0.0 <= self.temperature <= 100.0:
            raise UsageError(f"temperature is {self.temperature}", "Give a number of 0 or more.")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top-p is {self.top_p}", "Give a number above 0, at most 1.")
        if self.max_tokens < 1 or self.timeout_s <= 0 or self.max_retries < 0 or self.backoff_s < 0:
            raise UsageError("max-tokens and timeout must be above 0, retries and back-off not below")


def _tool_format(value: str) -> ToolFormat:
    try:
        return ToolFormat(value)
    except ValueError:
        raise UsageError(f"tool-format is {value!r}", f"Choose one of: {', '.join(ToolFormat)}.") from None
