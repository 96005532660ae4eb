"""Tally of the trivial answers on one task, and one check they are put to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cuda_agent.config import Track
from cuda_agent.judge import exchange
from cuda_agent.judge.admission import Protocol, Trial, TrivialAnswer
from cuda_agent.judge.reference import Drawn, Expected
from cuda_agent.judge.trivial import TOLERANCES, Contract, unit_error


@dataclass
class _Tally:
    """One answer under one protocol so far: worst error over allowance, and where."""

    ratio: float | None = None
    check: str = ""
    void: str = ""


class Trials:
    """What each answer came to so far; one that was refused is not tried again under that protocol.

    Attributes:
        checks: made so far, in order.
        dropped: derived inputs on which the reference raises or is not finite.
        inputs: of the first draw, in words.
    """

    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self.checks: list[str] = []
        self.dropped: list[str] = []
        self.inputs: tuple[str, ...] = ()
        self._tallies = {p: {answer: _Tally() for answer in TrivialAnswer} for p in protocols}

    def alive(self, protocol: Protocol) -> list[TrivialAnswer]:
        """Answers that apply and that nothing refused yet."""
        tallies = self._tallies.get(protocol, {})
        return [a for a, t in tallies.items() if not t.void and (t.ratio is None or t.ratio <= 1)]

    def record(self, protocol: Protocol, answer: TrivialAnswer, ratio: float, check: str) -> None:
        """Take in one comparison: error over allowance."""
        tally = self._tallies[protocol][answer]
        if tally.ratio is None or ratio > tally.ratio:
            tally.ratio, tally.check = ratio, check

    def void(self, answer: TrivialAnswer, why: str) -> None:
        """An answer that does not apply to the task."""
        for tallies in self._tallies.values():
            tallies[answer].void = why

    def results(self, reason: str) -> dict[Protocol, dict[TrivialAnswer, Trial]]:
        """Everything as data; with a reason, answers not refused by then are undecided."""
        return {
            protocol: {answer: _trial(tally, reason) for answer, tally in tallies.items()}
            for protocol, tallies in self._tallies.items()
        }


def _trial(tally: _Tally, reason: str) -> Trial:
    if tally.void:
        return Trial(None, detail=tally.void)
    if tally.ratio is not None and tally.ratio > 1:
        return Trial(False, tally.ratio, tally.check)
    if reason or tally.ratio is None:
        return Trial(None, tally.ratio, tally.check, reason or "no check was made")
    return Trial(True, tally.ratio, tally.check)


class Check:
    """One set of inputs, what the reference gives for it, and for another input (same weights).

    Args:
        name: of the check.
        drawn, expected: inputs and outputs.
        source: the outputs for another input.
        track: the judge's contract.
    """

    def __init__(
        self, name: str, drawn: Drawn, expected: Expected, *, source: list[Tensor], track: Track
    ) -> None:
        self.name = name
        self.drawn = drawn
        self.source = source
        self.truth = list(exchange.leaves(expected.outputs))
        truth64: list[Tensor | None] = [None] * len(self.truth)
        if expected.outputs64 is not None:
            truth64 = list(exchange.leaves(expected.outputs64))
        self._contracts = [
            Contract(leaf, wide, track, finite=expected.finite)
            for leaf, wide in zip(self.truth, truth64, strict=True)
        ]

    def ratios(self, index: int, answer: Tensor, protocols: Sequence[Protocol]) -> dict[Protocol, float]:
        """Error of an answer for output ``index`` over what each protocol allows."""
        found = {}
        plain = [p for p in protocols if p in TOLERANCES]
        if plain:
            error = unit_error(answer, self.truth[index])
            found = {protocol: error / TOLERANCES[protocol] for protocol in plain}
        if Protocol.JUDGE in protocols:
            found[Protocol.JUDGE] = self._contracts[index].ratio(answer)
        return found

    def worst(self, leaves: Sequence[Tensor], protocols: Sequence[Protocol]) -> dict[Protocol, float]:
        """Largest error over allowance of an answer for all outputs."""
        if len(leaves) != len(self.truth):
            return dict.fromkeys(protocols, math.inf)
        worst = dict.fromkeys(protocols, 0.0)
        for index, leaf in enumerate(leaves):
            for protocol, ratio in self.ratios(index, leaf, protocols).items():
                worst[protocol] = max(worst[protocol], ratio)
        return worst
