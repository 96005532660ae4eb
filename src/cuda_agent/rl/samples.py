"""Sampled trajectories of a step as a page for people: the best, the median and the worst."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cuda_agent.judge.reward import RewardKind, reward_of
from cuda_agent.rl.batches import Episode
from cuda_agent.runs.run_folder import write_text

MAX_CHARS = 6000
"""Of one answer or observation."""


def write_samples(episodes: Sequence[Episode], path: Path, *, kind: RewardKind) -> None:
    """Write ``path``, Markdown."""
    scored = sorted(episodes, key=lambda episode: _reward(episode, kind))
    chosen = [scored[-1], scored[len(scored) // 2], scored[0]] if scored else []
    names = ("best", "median", "worst")
    parts = [_episode(episode, name, kind) for episode, name in zip(chosen, names, strict=False)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n\n".join(parts) + "\n")


def _episode(episode: Episode, name: str, kind: RewardKind) -> str:
    trajectory, result = episode.trajectory, episode.result
    verdict = "no verdict" if result is None else f"stage {result.stage}, correct {result.correct}"
    lines = [
        f"# {name}: reward {_reward(episode, kind):g}, ending {trajectory.ending}, {verdict}",
        f"task {trajectory.header.task_hash}",
    ]
    if result is not None and result.detail:
        lines.append(f"```\n{result.detail[:MAX_CHARS]}\n```")
    for turn in trajectory.turns:
        tokens = len(turn.tokens.completion_ids) if turn.tokens else 0
        lines.append(f"## turn {turn.index + 1}: {tokens} tokens, {turn.seconds:.1f} s")
        lines.append(turn.text[:MAX_CHARS])
        lines += [f"call {call.name}: {str(dict(call.arguments))[:MAX_CHARS]}" for call in turn.calls]
        lines += [f"> {seen.text[:MAX_CHARS]}".replace("\n", "\n> ") for seen in turn.observations]
    return "\n\n".join(lines)


def _reward(episode: Episode, kind: RewardKind) -> float:
    reward = None if episode.result is None else reward_of(episode.result, kind)
    return float("-inf") if reward is None else reward
