"""The first trial of an operator that runs, for each rank of its first input."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.mine.naming import spatial
from cuda_agent.synthesis.mine.parameters import Parameter
from cuda_agent.synthesis.mine.proposals import (
    constructions,
    law_combos,
    numbers_in,
    refined_laws,
    shape_combos,
)
from cuda_agent.synthesis.mine.subject import Subject
from cuda_agent.synthesis.mine.trial import Given, NotFinite, Trial, run, runs
from cuda_agent.synthesis.seed_rules import Value
from cuda_agent.synthesis.words import words

RANKS = (3, 2, 4, 1)
_SECONDS_A_RANK = 6.0
_SHAPES = 60
_WEIGHTS = words("weight filters")
_TRIALS = 1200


class Clock:
    """A budget of seconds."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    def part(self, limit_s: float) -> Clock:
        """A part of what is left."""
        return Clock(min(limit_s, self._end - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """No time is left."""
        return time.monotonic() > self._end


def first_trials(subject: Subject, clock: Clock) -> list[Trial]:
    """The first trial that runs, for each rank of the first input that works; the usual rank first.

    Options found for one rank are tried alone at the others; a rank that only other options suit is left out.
    Vectors are tried where nothing else works.
    An operator that says its number of dimensions (``nn.Conv2d``) is tried with a batch and channels alone,
    where that works.
    """
    found: list[Trial] = []
    dimensions = spatial(subject.target)
    for rank in RANKS if dimensions is None else (dimensions + 2, *RANKS):
        if clock.is_over or (found and (dimensions is not None or rank == 1)):
            break
        pool = [found[0].options] if found else None
        trial = _search(subject, rank, clock.part(_SECONDS_A_RANK), pool)
        if trial is not None:
            found.append(trial)
    return sorted(found, key=_unusual)


def _unusual(trial: Trial) -> bool:
    """Indices and classes come as rows of a batch."""
    first = next(given for given in trial.givens if given is not None)
    return first.law is Law.INTEGERS and len(first.shape) != 2


def _search(
    subject: Subject, rank: int, clock: Clock, options: list[Mapping[str, Value]] | None
) -> Trial | None:
    inputs = required_inputs(subject)
    for seen, trial in enumerate(_proposed(subject, inputs, rank, options), start=1):
        if clock.is_over or seen > _TRIALS:
            return None
        try:
            run(subject, trial)
        except NotFinite:
            if (refined := _refined(subject, trial)) is not None:
                return refined
        except Exception:  # noqa: BLE001  an operator may refuse in any way
            if seen < 40 and (refined := _values_refused(subject, trial)) is not None:
                return refined
        else:
            return trial
    return None


def required_inputs(subject: Subject) -> list[Parameter]:
    """The inputs of a trial; those that may be left out are left out."""
    inputs = list(subject.inputs)
    return [p for p in inputs if p.required] or inputs[:1]


def _proposed(
    subject: Subject, inputs: list[Parameter], rank: int, options: list[Mapping[str, Value]] | None
) -> Iterator[Trial]:
    """Cheapest first: laws outermost, then options against shapes along the diagonal."""
    pool = options if options is not None else list(constructions(subject.hyper, subject.doc))
    names = [p.name for p in inputs]
    weights = [p.name in _WEIGHTS for p in inputs]
    for laws in law_combos(inputs, subject.doc):
        rows = []
        for cost, chosen in enumerate(pool):
            combos = shape_combos(rank, weights, numbers_in(chosen), _SHAPES)
            rows += [(cost + index, chosen, shapes) for index, shapes in enumerate(combos)]
        rows.sort(key=lambda row: row[0])
        for _, chosen, shapes in itertools.islice(rows, 160):
            by_name = {n: Given(s, law) for n, s, law in zip(names, shapes, laws, strict=True)}
            yield Trial(chosen, tuple(by_name.get(p.name) for p in subject.inputs))


def _refined(subject: Subject, trial: Trial) -> Trial | None:
    """The same shapes with other laws of the values, until the outputs are finite."""
    for index, (parameter, given) in enumerate(zip(subject.inputs, trial.givens, strict=True)):
        if given is None:
            continue
        for law in refined_laws(parameter, subject.doc, given.law):
            if law is not given.law:
                other = trial.with_given(index, replace(given, law=law))
                if runs(subject, other):
                    return other
    return None


def _values_refused(subject: Subject, trial: Trial) -> Trial | None:
    """A matrix that has to be definite is refused by its values, in an error of its own."""
    first = next((i for i, g in enumerate(trial.givens) if g is not None), 0)
    given = trial.givens[first]
    if (
        given is None
        or given.law is not Law.NORMAL
        or len(given.shape) < 2
        or given.shape[-1] != given.shape[-2]
    ):
        return None
    for law in (Law.POSITIVE_DEFINITE, Law.INVERTIBLE):
        other = trial.with_given(first, replace(given, law=law))
        if runs(subject, other):
            return other
    return None
