"""The judge: builds a candidate from its sources, verifies it, times it, returns a verdict.

Three processes: the judge (no task code, no candidate code), the reference runner, the candidate's
process. See docs/judging.md. Importing this package imports no torch; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_agent.judge.duel import Comparison, compare_candidates
    from cuda_agent.judge.entry import judge
    from cuda_agent.judge.session import JudgeSession

__all__ = ["Comparison", "JudgeSession", "compare_candidates", "judge"]

_HOMES = {
    "Comparison": "cuda_agent.judge.duel",
    "JudgeSession": "cuda_agent.judge.session",
    "compare_candidates": "cuda_agent.judge.duel",
    "judge": "cuda_agent.judge.entry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
