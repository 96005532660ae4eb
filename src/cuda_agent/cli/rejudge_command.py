"""``cuda-agent rejudge``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.config import Track

RunArgument = Annotated[Path, typer.Argument(help="Folder of a run of cuda-agent train.")]
RewardOption = Annotated[str, typer.Option("--reward", help="milestone, raw_speedup or graded.")]
NewTrackOption = Annotated[
    Track | None, typer.Option("--track", help="Judge the kept candidates again under this contract.")
]
AgainOption = Annotated[bool, typer.Option("--again", help="Judge the kept candidates again.")]


def rejudge(
    run: RunArgument,
    *,
    reward: RewardOption = "milestone",
    track: NewTrackOption = None,
    again: AgainOption = False,
) -> None:
    """Score a training run anew, without generating: another reward, track or judge version."""
    from cuda_agent.errors import UsageError
    from cuda_agent.judge.reward import RewardKind
    from cuda_agent.rl.rejudge import Asked, rescored_text
    from cuda_agent.rl.rejudge import rejudge as score_anew

    try:
        kind = RewardKind(reward)
    except ValueError:
        raise UsageError(f"reward is {reward!r}", f"Choose one of: {', '.join(RewardKind)}.") from None
    sys.stdout.write(rescored_text(score_anew(run, Asked(kind, track, again))) + "\n")
