"""The maths of cuda_agent.rl again, independently: Python floats, lists and loops."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Row:
    """One trajectory's acted tokens, and its outcome."""

    sampler: list[float]
    old: list[float]
    new: list[float]
    values: list[float]
    new_values: list[float]
    outcome: float
    task: int


def gae(row: Row, gamma: float, lam: float) -> list[float]:
    advantages = []
    for t in range(len(row.values)):
        total, factor = 0.0, 1.0
        for k in range(t, len(row.values)):
            last = k + 1 == len(row.values)
            reward = row.outcome if last else 0.0
            delta = reward + (0.0 if last else gamma * row.values[k + 1]) - row.values[k]
            total += factor * delta
            factor *= gamma * lam
        advantages.append(total)
    return advantages


def adaptive(row: Row, alpha: float) -> float:
    return max(0.0, 1.0 - 1.0 / (alpha * len(row.values)))


def whitened(rows: list[list[float]]) -> list[list[float]]:
    flat = [a for row in rows for a in row]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in flat) / len(flat))
    return [[(a - mean) / deviation for a in row] for row in rows]


def token_loss(ratio: float, advantage: float, low: float, high: float, dual: float) -> float:
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = max(-advantage * ratio, -advantage * clipped)
    return min(loss, -advantage * dual) if advantage < 0 else loss


def policy_loss(
    rows: list[Row], advantages: list[list[float]], *, decoupled: bool, floor: float, truncation: float
) -> float:
    total = 0.0
    for row, row_advantages in zip(rows, advantages, strict=True):
        losses = []
        for sampler, old, new, advantage in zip(row.sampler, row.old, row.new, row_advantages, strict=True):
            if math.exp(sampler) < floor:
                continue
            against = old if decoupled else sampler
            weight = min(math.exp(old - sampler), truncation) if decoupled else 1.0
            losses.append(weight * token_loss(math.exp(new - against), advantage, 0.2, 0.28, 3.0))
        if losses:
            total += sum(losses) / len(losses)
    return total / len(rows)


def value_loss(rows: list[Row], targets: list[list[float]]) -> float:
    per_row = [
        sum(0.5 * (v - t) ** 2 for v, t in zip(row.new_values, target, strict=True)) / len(target)
        for row, target in zip(rows, targets, strict=True)
    ]
    return sum(per_row) / len(rows)


def leave_one_out(rows: list[Row]) -> list[float]:
    found = []
    for i, row in enumerate(rows):
        others = [other.outcome for j, other in enumerate(rows) if j != i and other.task == row.task]
        found.append(row.outcome - sum(others) / len(others) if others else 0.0)
    return found


def explained_variance(predictions: list[float], outcomes: list[float]) -> float:
    def variance(numbers: list[float]) -> float:
        mean = sum(numbers) / len(numbers)
        return sum((x - mean) ** 2 for x in numbers) / len(numbers)

    return 1 - variance([o - p for o, p in zip(outcomes, predictions, strict=True)]) / variance(outcomes)
