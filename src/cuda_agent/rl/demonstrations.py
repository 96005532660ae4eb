"""What a cold start learns from: recorded episodes, or prompts with answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.options import ToolFormat
from cuda_agent.agent.policies.tokenspace import TokenSpace
from cuda_agent.agent.policy import Message, Role
from cuda_agent.agent.single_turn import SYSTEM
from cuda_agent.errors import UsageError
from cuda_agent.rl.batches import read_episode, rollout_of
from cuda_agent.rl.rollouts import Rollout


def demonstrations(source: Path, tokenizer: Any) -> list[Rollout]:
    """Rollouts whose acted tokens are to be learned.

    Args:
        source: a ``.jsonl`` of ``{"prompt": ..., "answer": ...}`` (``system`` and ``task`` optional), which
            the tokenizer's chat template turns into ids; or a folder with episodes anywhere below it, whose
            recorded ids are used as they are.

    Raises:
        UsageError: nothing there, or a row without prompt or answer.
    """
    if source.is_dir():
        found = [path.parent for path in sorted(source.rglob("trajectory.jsonl"))]
        rollouts = [_recorded(folder) for folder in found]
    else:
        rollouts = _written(source, tokenizer)
    if not rollouts:
        raise UsageError(f"no demonstrations in {source}", "Name episodes or a .jsonl (sft.data).")
    return rollouts


def _recorded(folder: Path) -> Rollout:
    try:
        return rollout_of(read_episode(folder).trajectory, 1.0)
    except ValueError as error:
        raise UsageError(f"{folder} cannot be learned from: {error}") from None


def _written(source: Path, tokenizer: Any) -> list[Rollout]:
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}", "Name a .jsonl (sft.data).") from None
    space = TokenSpace(tokenizer, ToolFormat.TEXT)
    end = space.end_of_answer()
    stop = tokenizer.eos_token_id if end is None else end
    return [
        _rollout(line, f"{source}:{n}", space, tokenizer, stop) for n, line in enumerate(lines, 1) if line
    ]


def _rollout(line: str, where: str, space: TokenSpace, tokenizer: Any, stop: int) -> Rollout:
    try:
        row = json.loads(line)
        prompt, answer = str(row["prompt"]), str(row["answer"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{where} has no prompt and answer: {error!r}") from None
    messages = [Message(Role.SYSTEM, str(row.get("system", SYSTEM))), Message(Role.USER, prompt)]
    _, given = space.context(messages, (), stop_ids={stop})
    acted = [*tokenizer(answer, add_special_tokens=False)["input_ids"], stop]
    size = len(given) + len(acted)
    return Rollout(
        task=str(row.get("task", where)),
        token_ids=(*given, *acted),
        acted=(False,) * len(given) + (True,) * len(acted),
        logprobs=(0.0,) * size,
        turns=(0,) * size,
        outcome=1.0,
    )
