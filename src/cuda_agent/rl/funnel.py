"""How far the candidates of a step came, and what else its episodes show: pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from cuda_agent.judge.reward import RewardKind, reward_of
from cuda_agent.result import Result, Stage
from cuda_agent.rl.batches import Built, Episode, Use

_IDENTIFIER = re.compile(r"'[^']*'|‘[^’]*’|\"[^\"]*\"|`[^`]*`")
_NUMBER = re.compile(r"\b\d+\b")
_ERROR = re.compile(r"(?:fatal )?error:? (.*)")
MAX_CLUSTERS = 5


class Came(StrEnum):
    """How far a candidate came; each episode is counted once, ``DROPPED`` where it is not trained on."""

    DROPPED = "dropped"
    NO_BLOCK = "no_block"
    BUILD = "build"
    LOAD = "load"
    WRONG = "wrong"
    CHEAT = "cheat"
    ONE = "1"
    TWO = "2"
    THREE = "3"


def came(episode: Episode, use: Use) -> Came:
    """How far the candidate of an episode came."""
    result = episode.result
    if use.is_dropped:
        return Came.DROPPED
    if result is None or (
        result.candidate_hash is None and result.stage is Stage.BUILD and not result.compiled
    ):
        return Came.NO_BLOCK if result is None or _nothing(result) else Came.BUILD
    if result.violations:
        return Came.CHEAT
    if result.correct:
        reward = reward_of(result, RewardKind.MILESTONE) or 1.0
        return {1: Came.ONE, 2: Came.TWO}.get(int(reward), Came.THREE)
    return {Stage.BUILD: Came.BUILD, Stage.LOAD: Came.LOAD}.get(result.stage, Came.WRONG)


def funnel(episodes: Sequence[Episode], uses: Sequence[Use]) -> dict[str, int]:
    """Number of episodes by how far they came, every key present."""
    counted = Counter(came(episode, use) for episode, use in zip(episodes, uses, strict=True))
    return {str(step): counted[step] for step in Came}


def compiler_errors(episodes: Sequence[Episode]) -> dict[str, int]:
    """The most frequent compiler messages, names and numbers taken out."""
    counted: Counter[str] = Counter()
    for episode in episodes:
        result = episode.result
        if result is not None and result.stage is Stage.BUILD and result.correct is False:
            counted[_cluster(result.detail)] += 1
    return dict(counted.most_common(MAX_CLUSTERS))


def step_metrics(episodes: Sequence[Episode], built: Built) -> dict[str, float]:
    """Of a rollout batch: reward, lengths, shares that the guards watch."""
    outcomes = [rollout.outcome for rollout in built.rollouts]
    lengths = [sum(rollout.acted) for rollout in built.rollouts]
    clipped = sum(use is Use.LENGTH_CLIPPED for use in built.uses)
    number = max(1, len(outcomes))
    return {
        "reward": sum(outcomes) / number if outcomes else float("nan"),
        "passed": sum(outcome > 0 for outcome in outcomes) / number,
        "acted_tokens": sum(lengths) / number,
        "turns": sum(len(e.trajectory.turns) for e in episodes) / max(1, len(episodes)),
        "length_clipped": clipped / number,
        "drop_rate": built.drop_rate(),
        "identical": identical_share(built),
        "episodes": float(len(episodes)),
        "trained": float(len(outcomes)),
        "cheats": float(built.num_cheats),
    }


def identical_share(built: Built) -> float:
    """Share of rollouts whose acted tokens equal those of an earlier one of the same task."""
    seen: set[tuple[object, ...]] = set()
    repeats = 0
    for rollout in built.rollouts:
        acted = (i for i, a in zip(rollout.token_ids, rollout.acted, strict=True) if a)
        key = (rollout.task, *acted)
        repeats += key in seen
        seen.add(key)
    return repeats / max(1, len(built.rollouts))


def _nothing(result: Result) -> bool:
    return result.detail.startswith("no candidate was written")


def _cluster(detail: str) -> str:
    found = _ERROR.search(detail)
    line = found[1] if found else next(iter(detail.strip().splitlines()), "no message")
    return _NUMBER.sub("N", _IDENTIFIER.sub("NAME", line)).strip()[:120]
