"""``cuda-agent compare``: two candidates of one task, timed against each other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cuda_agent.config import JudgeConfig
from cuda_agent.errors import UsageError
from cuda_agent.inspection.opened import open_candidate
from cuda_agent.result import Times
from cuda_agent.runs.summary import format_times


@dataclass(frozen=True)
class ComparisonReport:
    """Two candidates on the same inputs; ``ratio`` is A's time over B's, with its 95 % interval."""

    a: str
    b: str
    a_us: Times
    b_us: Times
    ratio: float
    interval: tuple[float, float]

    @property
    def conclusion(self) -> str:
        """Which is faster, or that nothing can be said."""
        low, high = self.interval
        if low > 1.0:
            return f"B is faster: A takes {self.ratio:.3f} times as long"
        if high < 1.0:
            return f"A is faster: B takes {1 / self.ratio:.3f} times as long"
        return "no difference can be told"

    def text(self) -> str:
        """For people."""
        low, high = self.interval
        return "\n".join(
            [
                f"A  {format_times(self.a_us)}  {self.a}",
                f"B  {format_times(self.b_us)}  {self.b}",
                f"A / B  {self.ratio:.3f}  (95 % interval {low:.3f} to {high:.3f})",
                self.conclusion,
            ]
        )

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps({**asdict(self), "conclusion": self.conclusion})


def compare_folders(a: Path, b: Path, config: JudgeConfig) -> ComparisonReport:
    """Time the candidates of two folders interleaved.

    Args:
        a, b: workspaces or finished runs of one task.
        config: device and contract.

    Raises:
        UsageError: they are for different tasks.
        CudaAgentError: one of them is no working candidate, or the judge cannot work.
    """
    from cuda_agent.judge import compare_candidates

    first, second = open_candidate(a, config), open_candidate(b, config)
    if first.task.hash != second.task.hash:
        raise UsageError(f"{a} and {b} are for different tasks", "Compare candidates of one task.")
    found = compare_candidates(first.snapshot, second.snapshot, task=first.task, config=first.config)
    return ComparisonReport(str(a), str(b), found.a_us, found.b_us, found.ratio, found.interval)
