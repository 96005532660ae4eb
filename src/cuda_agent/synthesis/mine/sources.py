"""Where subjects come from: one row for each library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.seed import Seed


@dataclass(frozen=True)
class Source:
    """A library to mine.

    Attributes:
        ids: of all subjects that a walk finds, in order.
        mine: the seed of one subject; ``Idle`` is raised with the reason where it is none.
        copies: of seeds that several processes made apart, those that repeat an earlier one: id and reason.
    """

    ids: Callable[[], list[str]]
    mine: Callable[[str], Seed]
    copies: Callable[[Sequence[Seed]], dict[str, str]] = lambda _: {}


def _torch_ids() -> list[str]:
    from cuda_agent.synthesis.mine.torch_walk import names

    return [name.id for name in names()]


def _torch_mine(id_: str) -> Seed:
    from cuda_agent.synthesis.mine.torch_seed import torch_seed
    from cuda_agent.synthesis.mine.torch_walk import Unfit, names, subjects
    from cuda_agent.synthesis.mine.traits import Idle

    found = subjects(next(name for name in names() if name.id == id_))
    if isinstance(found, Unfit):
        raise Idle(str(found))
    reason = Idle("nothing that was tried runs")
    for subject in found:
        try:
            return torch_seed(id_, subject)
        except Idle as idle:
            reason = idle
    raise reason


def _transformers_ids() -> list[str]:
    from cuda_agent.synthesis.mine.modelling.walk import class_ids

    return class_ids()


def _transformers_mine(id_: str) -> Seed:
    from cuda_agent.synthesis.mine.modelling.seed import transformers_seed

    return transformers_seed(id_)


def _transformers_copies(seeds: Sequence[Seed]) -> dict[str, str]:
    from cuda_agent.synthesis.mine.modelling.graphs import same_graphs

    return {id_: f"computes what {first} computes" for id_, first in same_graphs(seeds).items()}


SOURCES: dict[str, Source] = {
    "torch": Source(_torch_ids, _torch_mine),
    "transformers": Source(_transformers_ids, _transformers_mine, _transformers_copies),
}


def wanted(source: str, only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Subjects of a source, in order: (name of the source, id).

    Args:
        source: of :data:`SOURCES`, or ``all``.
        only: shell patterns of ids; all when empty.

    Raises:
        UsageError: there is no such source, or no such subject.
    """
    found = [(name, id_) for name, src in chosen(source).items() for id_ in src.ids()]
    if only:
        found = [item for item in found if any(fnmatchcase(item[1], pattern) for pattern in only)]
    if not found:
        raise UsageError(
            f"{source} has no operator {' or '.join(only)}", "Patterns are as 'torch.nn.*Pool*'."
        )
    return found


def copies(seeds: Sequence[Seed]) -> dict[str, str]:
    """Seeds that repeat an earlier one of their library: id and reason."""
    found: dict[str, str] = {}
    for name, source in SOURCES.items():
        found |= source.copies([seed for seed in seeds if seed.origin == name])
    return found


def chosen(name: str) -> dict[str, Source]:
    """The sources that a name means; ``all`` is every one.

    Raises:
        UsageError: there is no such source.
    """
    if name == "all":
        return SOURCES
    if name not in SOURCES:
        raise UsageError(f"there is no source {name}", f"Choose one of: {', '.join([*SOURCES, 'all'])}.")
    return {name: SOURCES[name]}
