"""Resolved configuration of one optimisation, saved beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agent.policy import Policy
from cuda_agent.backends.base import Backend
from cuda_agent.config import EpisodeConfig, JudgeConfig
from cuda_agent.errors import UsageError
from cuda_agent.task import Task


@dataclass(frozen=True)
class OptimizeSettings:
    """What one run is made of.

    Attributes:
        policy: as given to ``--policy``.
        policy_options: keyword arguments of :func:`cuda_agent.agent.policies.make_policy` (base URL,
            sampling, prices); never a key or token, these come from the environment.
        judge: how candidates are judged.
        episode: limits of the episode.
        pool: address of the pool that judges; empty: this machine. Never its token.
    """

    policy: str = "playbook"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    pool: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OptimizeSettings:
        """Inverse of :meth:`to_dict`.

        Raises:
            UsageError: a key is unknown or missing.
        """
        try:
            return cls(
                policy=data["policy"],
                policy_options=dict(data["policy_options"]),
                judge=JudgeConfig(**data["judge"]),
                episode=EpisodeConfig(**data["episode"]),
                pool=data.get("pool", ""),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"settings.json does not fit: {error}", "Start a new run.") from None


@dataclass(frozen=True)
class Prepared:
    """What is known before anything is written: the backend answers, the task can be judged."""

    task: Task
    settings: OptimizeSettings
    backend: Backend
    policy: Policy
