"""Alarms of a training run that is about to collapse, as pure functions of its metrics.

They cover what the paper's collapse showed (entropy, ratio, explained variance, length-clipped answers) and
what RL on verdicts runs into (identical answers, dropped episodes, reward falling). They do not cover a
reward that is gamed within the rules: the share of cheats is logged, the judge refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from cuda_agent.rl.training_config import GuardConfig

_BASE_STEPS = 3


class Alarm(StrEnum):
    """What a step shows."""

    NOT_FINITE = "not_finite"
    ENTROPY_RISE = "entropy_rise"
    ENTROPY_FLOOR = "entropy_floor"
    RATIO = "ratio"
    KL = "kl"
    GAP = "gap"
    EXPLAINED_VARIANCE = "explained_variance"
    LENGTH_CLIPPED = "length_clipped"
    IDENTICAL = "identical"
    DROP_RATE = "drop_rate"
    REWARD_FALL = "reward_fall"


Row = Mapping[str, float]


def alarms(history: Sequence[Row], config: GuardConfig) -> list[Alarm]:
    """Alarms of the last row of a stage's metrics; the others are what it is compared with."""
    row = history[-1]
    above = {
        Alarm.RATIO: ("ratio_outside", config.ratio_outside),
        Alarm.KL: ("kl", config.kl),
        Alarm.GAP: ("gap", config.gap),
        Alarm.LENGTH_CLIPPED: ("length_clipped", config.length_clipped),
        Alarm.IDENTICAL: ("identical", config.identical),
        Alarm.DROP_RATE: ("drop_rate", config.drop_rate),
    }
    found = [alarm for alarm, (name, bound) in above.items() if row.get(name, bound) > bound]
    found += _low(row, config) + _against_history(history, config)
    losses = (row.get(name, 0.0) for name in ("policy_loss", "value_loss", "actor_norm", "critic_norm"))
    if not all(math.isfinite(loss) for loss in losses):
        found.append(Alarm.NOT_FINITE)
    return sorted(set(found))


def is_due(by_step: Sequence[Sequence[Alarm]], patience: int) -> Alarm | None:
    """The alarm on which action is due: raised in each of the last ``patience`` steps.

    A number that is not finite is due at once.
    """
    if by_step and Alarm.NOT_FINITE in by_step[-1]:
        return Alarm.NOT_FINITE
    if len(by_step) < patience:
        return None
    lasting = set.intersection(*(set(step) for step in by_step[-patience:]))
    return min(lasting, default=None)


def _low(row: Row, config: GuardConfig) -> list[Alarm]:
    below = {
        Alarm.ENTROPY_FLOOR: ("entropy", config.entropy_floor),
        Alarm.EXPLAINED_VARIANCE: ("explained_variance", config.explained_variance),
    }
    return [alarm for alarm, (name, bound) in below.items() if row.get(name, bound) < bound]


def _against_history(history: Sequence[Row], config: GuardConfig) -> list[Alarm]:
    found = []
    first = [row["entropy"] for row in history[:_BASE_STEPS] if "entropy" in row]
    if len(history) > _BASE_STEPS and first and "entropy" in history[-1]:
        base = sum(first) / len(first)
        if history[-1]["entropy"] > base * (1 + config.entropy_rise):
            found.append(Alarm.ENTROPY_RISE)
    rewards = [row["reward"] for row in history if not math.isnan(row.get("reward", math.nan))]
    if rewards and "reward" in history[-1] and max(rewards) - rewards[-1] > config.reward_fall:
        found.append(Alarm.REWARD_FALL)
    return found
