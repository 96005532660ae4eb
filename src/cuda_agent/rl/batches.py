"""From episodes on disk to rollouts: what is trained on, with which reward, and what is dropped and counted.

Turn and context limits are terminal: the workspace was judged, and nothing comes after (V = 0). What the
clock or our own side ended says nothing of the policy and is dropped. Ids, masks and log-probabilities are
those recorded when the tokens were sampled; no text is tokenised here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cuda_agent.errors import UsageError
from cuda_agent.judge.reward import RewardKind, reward_of
from cuda_agent.result import Result
from cuda_agent.rl.rollouts import Rollout
from cuda_agent.trajectory import Ending, TokenRecord, Trajectory, read_trajectory

DROP_ALARM = 0.02
"""Share of dropped episodes above which a run should stop: what remains is no fair sample."""
LENGTH_EDGES = (1024, 4096, 16_384, 65_536)
_WRONG = -1.0


class Use(StrEnum):
    """What becomes of an episode in training."""

    TRAINED = "trained"
    LENGTH_CLIPPED = "length_clipped"
    """A single-turn answer cut at its token limit: trained on, with reward -1."""
    DROPPED_TIME = "dropped_time"
    DROPPED_INTERRUPTED = "dropped_interrupted"
    DROPPED_INFRASTRUCTURE = "dropped_infrastructure"
    DROPPED_NO_TOKENS = "dropped_no_tokens"
    """A turn without token ids: not made by the model in training."""

    @property
    def is_dropped(self) -> bool:
        """Not trained on."""
        return self not in (Use.TRAINED, Use.LENGTH_CLIPPED)


_DROPPED = {
    Ending.TIME_LIMIT: Use.DROPPED_TIME,
    Ending.INTERRUPTED: Use.DROPPED_INTERRUPTED,
    Ending.SANDBOX_ERROR: Use.DROPPED_INFRASTRUCTURE,
    Ending.POLICY_ERROR: Use.DROPPED_INFRASTRUCTURE,
}


@dataclass(frozen=True)
class Episode:
    """One episode and the verdict on what it left; ``None`` where none was reached."""

    trajectory: Trajectory
    result: Result | None


@dataclass(frozen=True)
class Built:
    """What a set of episodes became.

    Attributes:
        rollouts: of the episodes that are trained on, in order.
        uses: of every episode.
        num_tokens: of every episode, as recorded.
        num_cheats: trained ones whose candidate broke a rule (reward -1).
    """

    rollouts: tuple[Rollout, ...]
    uses: tuple[Use, ...]
    num_tokens: tuple[int, ...]
    num_cheats: int

    def counts(self) -> dict[str, int]:
        """Episodes by use, and ``cheats``."""
        return {**Counter(str(use) for use in self.uses), "cheats": self.num_cheats}

    def drop_rate(self) -> float:
        """Share of all episodes that is dropped (alarm above :data:`DROP_ALARM`)."""
        return sum(use.is_dropped for use in self.uses) / max(1, len(self.uses))

    def drop_rate_by_length(self, edges: Sequence[int] = LENGTH_EDGES) -> dict[str, float]:
        """The share dropped among episodes of at most each number of tokens, and of more than the last.

        Long episodes meet the clock first: dropping them teaches brevity. Empty ranges are left out.
        """
        limits = (*edges, None)
        totals: Counter[int | None] = Counter()
        dropped: Counter[int | None] = Counter()
        for use, length in zip(self.uses, self.num_tokens, strict=True):
            limit = next((edge for edge in edges if length <= edge), None)
            totals[limit] += 1
            dropped[limit] += use.is_dropped
        names = {limit: f"<={limit}" if limit is not None else f">{edges[-1]}" for limit in limits}
        return {names[limit]: dropped[limit] / totals[limit] for limit in limits if totals[limit]}


def read_episode(folder: Path) -> Episode:
    """Read ``trajectory.jsonl`` and ``result.json`` of a run's folder.

    Raises:
        UsageError: no trajectory there, or a file is damaged.
    """
    trajectory = read_trajectory(folder / "trajectory.jsonl")
    path = folder / "result.json"
    if not path.is_file():
        return Episode(trajectory, None)
    try:
        return Episode(trajectory, Result.from_dict(json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no result: {error}", "Delete the run's folder, or run it again."
        ) from None


def use_of(episode: Episode, *, stop_ids: frozenset[int] | None = None) -> Use:
    """What becomes of an episode.

    Args:
        stop_ids: for single-turn answers: ids that end one. An answer that ends otherwise was cut.
    """
    trajectory, result = episode.trajectory, episode.result
    if trajectory.ending is None:  # it died
        return Use.DROPPED_INTERRUPTED
    if trajectory.ending in _DROPPED:
        return _DROPPED[trajectory.ending]
    records = [turn.tokens for turn in trajectory.turns]
    if not records or any(record is None or not record.completion_ids for record in records):
        return Use.DROPPED_NO_TOKENS
    last = records[-1]
    if stop_ids is not None and last is not None and last.completion_ids[-1] not in stop_ids:
        return Use.LENGTH_CLIPPED
    if result is None or reward_of(result) is None:
        return Use.DROPPED_INFRASTRUCTURE
    return Use.TRAINED


def rollout_of(trajectory: Trajectory, outcome: float) -> Rollout:
    """The recorded tokens of a trajectory, end to end.

    Raises:
        ValueError: it has no acted tokens, a turn has no record, or a record's lengths differ.
    """
    ids: list[int] = []
    acted: list[bool] = []
    logprobs: list[float] = []
    turns: list[int] = []
    versions: dict[str, None] = {}
    for index, record in enumerate(_records(trajectory)):
        if len(record.completion_ids) != len(record.logprobs):
            raise ValueError(
                f"turn {index} has {len(record.completion_ids)} ids, {len(record.logprobs)} logprobs"
            )
        num_given, num_acted = len(record.prompt_ids), len(record.completion_ids)
        ids += [*record.prompt_ids, *record.completion_ids]
        acted += [False] * num_given + [True] * num_acted
        logprobs += [0.0] * num_given + list(record.logprobs)
        turns += [index] * (num_given + num_acted)
        versions[record.policy_version] = None
    return Rollout(
        task=trajectory.header.task_hash,
        token_ids=tuple(ids),
        acted=tuple(acted),
        logprobs=tuple(logprobs),
        turns=tuple(turns),
        outcome=outcome,
        policy_versions=tuple(versions),
    )


def build(
    episodes: Sequence[Episode],
    *,
    reward: RewardKind = RewardKind.MILESTONE,
    stop_ids: frozenset[int] | None = None,
) -> Built:
    """Rollouts of a set of episodes.

    Args:
        reward: what a verdict is worth.
        stop_ids: see :func:`use_of`.
    """
    rollouts, uses, lengths, num_cheats = [], [], [], 0
    for episode in episodes:
        use = use_of(episode, stop_ids=stop_ids)
        uses.append(use)
        lengths.append(num_tokens(episode.trajectory))
        if use.is_dropped:
            continue
        cheated = episode.result is not None and bool(episode.result.violations)
        num_cheats += cheated
        rollouts.append(rollout_of(episode.trajectory, _outcome(episode, use, reward)))
    return Built(tuple(rollouts), tuple(uses), tuple(lengths), num_cheats)


def num_tokens(trajectory: Trajectory) -> int:
    """Tokens recorded in a trajectory."""
    records = (turn.tokens for turn in trajectory.turns)
    return sum(len(r.prompt_ids) + len(r.completion_ids) for r in records if r is not None)


def _outcome(episode: Episode, use: Use, kind: RewardKind) -> float:
    if use is Use.LENGTH_CLIPPED or episode.result is None:
        return _WRONG
    outcome = reward_of(episode.result, kind)
    return _WRONG if outcome is None else outcome


def _records(trajectory: Trajectory) -> Iterator[TokenRecord]:
    for turn in trajectory.turns:
        if turn.tokens is None:
            raise ValueError(f"turn {turn.index} has no token ids")
        yield turn.tokens
