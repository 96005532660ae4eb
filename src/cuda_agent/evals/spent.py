"""What an attempt cost: tokens, money, turns, judgements, read off its run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.evals.jsonl import read_lines
from cuda_agent.trajectory import Turn, Usage


@dataclass(frozen=True)
class Spent:
    """Sums over an attempt.

    Attributes:
        turns: made.
        prompt_tokens, completion_tokens: 0 where the policy tells none.
        cost_usd: ``None`` where no turn has a known cost.
        seconds: wall time of the turns.
        judged: judgements by scope (build, verify, profile), those before the final verdict.
    """

    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    judged: Mapping[str, int] = field(default_factory=dict)


def spent_on(
    turns: Sequence[Turn], snapshots: Path, *, price_in: float | None, price_out: float | None
) -> Spent:
    """Sum up an episode.

    Args:
        turns: of its trajectory.
        snapshots: the run's folder of versions (``results.jsonl`` in it).
        price_in, price_out: USD for a million prompt and completion tokens; used where a turn has no cost
            of its own (an endpoint's bill knows of cached tokens).
    """
    usages = [turn.usage for turn in turns if turn.usage is not None]
    costs = [cost for u in usages if (cost := _cost(u, price_in, price_out)) is not None]
    return Spent(
        turns=len(turns),
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        completion_tokens=sum(u.completion_tokens for u in usages),
        cost_usd=sum(costs) if costs else None,
        seconds=sum(turn.seconds for turn in turns),
        judged=dict(Counter(str(line.get("scope")) for line in read_lines(snapshots / "results.jsonl"))),
    )


def _cost(usage: Usage, price_in: float | None, price_out: float | None) -> float | None:
    if usage.cost_usd is not None or (price_in is None and price_out is None):
        return usage.cost_usd
    return (usage.prompt_tokens * (price_in or 0.0) + usage.completion_tokens * (price_out or 0.0)) / 1e6
