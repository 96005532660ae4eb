"""How many operators a task has: shares by kind of task."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.errors import UsageError

TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Mix:
    """Shares of tasks by ``data_source`` (``torch#1`` ... ``torch#5``, ``transformers``); they sum to 1."""

    shares: Mapping[str, float]

    def draw(self, rng: random.Random) -> str:
        """A kind of task at random."""
        kinds = list(self.shares)
        return rng.choices(kinds, [self.shares[kind] for kind in kinds])[0]


PAPER = Mix(
    {
        "torch#1": 0.0340,
        "torch#2": 0.8377,
        "torch#3": 0.0762,
        "torch#4": 0.0280,
        "torch#5": 0.0123,
        TRANSFORMERS: 0.0118,
    }
)
"""Shares of the public set (the paper's Table 3)."""

BALANCED = Mix(
    {"torch#1": 0.09, "torch#2": 0.37, "torch#3": 0.24, "torch#4": 0.12, "torch#5": 0.06, TRANSFORMERS: 0.12}
)
"""More long chains and more of transformers."""

PRESETS = {"paper": PAPER, "balanced": BALANCED}


def find_mix(name: str) -> Mix:
    """A mix by name.

    Raises:
        UsageError: no such mix.
    """
    if name not in PRESETS:
        raise UsageError(f"there is no mix {name}", f"Choose one of: {', '.join(PRESETS)}.")
    return PRESETS[name]
