"""Several ranks of one operator, each tried by itself, made one seed with several forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuda_agent.synthesis.mine.running import seed_runs
from cuda_agent.synthesis.seed import Seed
from cuda_agent.synthesis.seed_rules import SizeRule


def merged(seeds: Sequence[Seed]) -> Seed:
    """One seed with the forms of all that agree with the first in everything but shapes.

    A form that would take choices of an option away from the first is left out.
    """
    whole = seeds[0]
    for other in seeds[1:]:
        if other.inputs != whole.inputs:
            continue
        joined = replace(whole, sizes=_united(whole.sizes, other.sizes), forms=(*whole.forms, *other.forms))
        if all(_takes_choices(joined, form) for form in range(len(joined.forms))):
            whole = joined
    return whole


def _takes_choices(seed: Seed, form: int) -> bool:
    """Whether a form runs with every choice of every option."""
    settings = [{rule.name: choice} for rule in seed.options for choice in rule.choices]
    return all(seed_runs(seed, form, options=options) for options in ({}, *settings))


def _united(first: Sequence[SizeRule], second: Sequence[SizeRule]) -> tuple[SizeRule, ...]:
    rules: dict[str, SizeRule] = {rule.name: rule for rule in first}
    for rule in second:
        old = rules.get(rule.name)
        rules[rule.name] = rule if old is None else _stricter(old, rule)
    return tuple(rules.values())


def _stricter(old: SizeRule, rule: SizeRule) -> SizeRule:
    least, multiple = max(old.least, rule.least), max(old.multiple_of, rule.multiple_of)
    return replace(old, least=least, multiple_of=multiple)
