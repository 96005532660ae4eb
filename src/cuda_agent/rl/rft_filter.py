"""Which collected episodes the actor is fine-tuned on (paper, section 4: outcome and pattern filters).

The paper names the patterns (redundant multi-turn loops, violations of the tool schema, calls of tools that
do not exist) but no thresholds; ours are the fields of :class:`Rules`. The critic is fitted to everything,
kept or not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.judge.reward import reward_of
from cuda_agent.rl.batches import Episode, use_of
from cuda_agent.trajectory import Trajectory, Turn


class Reason(StrEnum):
    """Why an episode is not fine-tuned on."""

    NOT_TRAINABLE = "not_trainable"
    """Dropped from training altogether (:class:`cuda_agent.rl.batches.Use`)."""
    NOT_CORRECT = "not_correct"
    """Reward not above 0."""
    SCHEMA = "schema"
    """Actions that did not parse, had wrong arguments, or named a tool that does not exist."""
    REPEATED = "repeated"
    """One action, word for word, with the same answer, several times in a row."""
    REDUNDANT = "redundant"
    """Too large a share of actions that had been done before with the same answer."""


@dataclass(frozen=True)
class Rules:
    """Thresholds of the filter."""

    max_malformed: int = 0
    """Most malformed actions in an episode."""
    max_in_a_row: int = 2
    """Most times that one action may follow itself with the same answer."""
    max_redundant_share: float = 0.3
    """Most of an episode's actions that may repeat an earlier one with the same answer."""
    min_actions: int = 6
    """Episodes with fewer actions are not held to the share."""


@dataclass(frozen=True)
class Filtered:
    """What the filter did.

    Attributes:
        kept: places of the kept episodes, in order.
        first: dropped episodes by the first rule that they broke: these add up to the dropped.
        any: episodes that broke each rule, whatever else they broke.
    """

    kept: tuple[int, ...]
    first: dict[Reason, int]
    any: dict[Reason, int]


def filter_episodes(
    episodes: Sequence[Episode], rules: Rules = Rules(), *, stop_ids: frozenset[int] | None = None
) -> Filtered:
    """Apply the rules, in the order of :class:`Reason`.

    Args:
        stop_ids: for single-turn answers, see :func:`cuda_agent.rl.batches.use_of`.
    """
    kept: list[int] = []
    first: Counter[Reason] = Counter()
    every: Counter[Reason] = Counter()
    for place, episode in enumerate(episodes):
        reasons = reasons_against(episode, rules, stop_ids=stop_ids)
        if not reasons:
            kept.append(place)
            continue
        first[reasons[0]] += 1
        every.update(reasons)
    return Filtered(tuple(kept), dict(first), dict(every))


def reasons_against(
    episode: Episode, rules: Rules = Rules(), *, stop_ids: frozenset[int] | None = None
) -> list[Reason]:
    """Every rule that an episode breaks, in the order of :class:`Reason`; empty when it is kept."""
    trajectory = episode.trajectory
    reward = None if episode.result is None else reward_of(episode.result)
    broken = {
        Reason.NOT_TRAINABLE: use_of(episode, stop_ids=stop_ids).is_dropped,
        Reason.NOT_CORRECT: reward is None or reward <= 0,
        Reason.SCHEMA: sum(len(turn.malformed) for turn in trajectory.turns) > rules.max_malformed,
        Reason.REPEATED: longest_repeat(trajectory) > rules.max_in_a_row,
        Reason.REDUNDANT: _too_redundant(trajectory, rules),
    }
    return [reason for reason, holds in broken.items() if holds]


def longest_repeat(trajectory: Trajectory) -> int:
    """Longest run of one action with one answer; 1 where none follows itself."""
    longest, length, before = 0, 0, ""
    for step in _steps(trajectory):
        length = length + 1 if step == before else 1
        longest, before = max(longest, length), step
    return longest


def redundant_share(trajectory: Trajectory) -> float:
    """Share of actions that had been done before in the episode with the same answer."""
    steps = _steps(trajectory)
    return (len(steps) - len(set(steps))) / len(steps) if steps else 0.0


def _too_redundant(trajectory: Trajectory, rules: Rules) -> bool:
    long_enough = len(_steps(trajectory)) >= rules.min_actions
    return long_enough and redundant_share(trajectory) > rules.max_redundant_share


def _steps(trajectory: Trajectory) -> list[str]:
    return [step for turn in trajectory.turns for step in _turn_steps(turn)]


def _turn_steps(turn: Turn) -> list[str]:
    """Each call with its answer, as text that is equal for equal ones."""
    answers = {observation.call_id: observation.text for observation in turn.observations}
    return [
        json.dumps([call.name, dict(call.arguments), answers.get(call.id, "")], sort_keys=True)
        for call in turn.calls
    ]
