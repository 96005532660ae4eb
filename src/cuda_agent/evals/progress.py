"""Rates so far, in a line for each finished attempt."""

from __future__ import annotations

from cuda_agent.evals.metrics_records import UNCOUNTED, EvalAttempt, Verdict
from cuda_agent.result import Result


class Progress:
    """Counts finished attempts.

    Args:
        total: attempts in all.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lines: dict[tuple[str, int], EvalAttempt] = {}

    def add(self, line: EvalAttempt) -> str:
        """Take one in; what to print of it."""
        self._lines[line.id, line.sample] = line
        name = f"{line.id} #{line.sample}"
        return f"[{len(self._lines)}/{self._total}] {name}: {_outcome(line)} | {self.rates()}"

    def rates(self) -> str:
        """``pass 3/4 (75 %), faster than eager 2 (50 %), than torch.compile 1 (25 %)``."""
        counted = [a for a in self._lines.values() if a.verdict() not in UNCOUNTED]
        lost = len(self._lines) - len(counted)
        correct = [a.best for a in counted if a.verdict() is Verdict.CORRECT and a.best is not None]
        total = max(1, len(counted))
        text = f"pass {len(correct)}/{len(counted)} ({len(correct) / total:.0%})"
        for words, name in (("faster than eager", "eager"), ("than torch.compile", "compile")):
            faster = sum(_is_faster(result, name) for result in correct)
            text += f", {words} {faster} ({faster / total:.0%})"
        return text + (f", not counted {lost}" if lost else "")


def _is_faster(result: Result, baseline: str) -> bool:
    return (result.speedup(baseline) or 0.0) > 1.0


def _outcome(line: EvalAttempt) -> str:
    verdict = line.verdict()
    if verdict in UNCOUNTED:
        return f"{verdict} ({line.uncounted_reason()[:160]})"
    if verdict is not Verdict.CORRECT or line.best is None:
        return str(verdict)
    gains = [(line.best.speedup(name), name) for name in ("eager", "compile")]
    return "correct, " + ", ".join(f"{gain:.2f}x {name}" for gain, name in gains if gain is not None)
