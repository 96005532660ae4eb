"""What a stage knows of one task: the source, where it came from, and what was measured so far."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cuda_agent.task import Task


class Form(StrEnum):
    """The sizes a task is written at."""

    SMALL = "small"
    """For CPUs and small cards: a call takes milliseconds there."""
    SHIPPED = "shipped"
    """As exported: for the device the set is made on."""


@dataclass(frozen=True)
class Size:
    """A size constant of a task.

    Attributes:
        small, shipped: its value in the two forms.
        free: it may grow or shrink on its own (a batch, a length), without any other constant.
    """

    small: int
    shipped: int
    free: bool = True


@dataclass(frozen=True)
class TaskRecord:
    """One task on its way through the stages.

    Attributes:
        code: source, at the shipped sizes.
        ops: operators that its author declares, in order, as the public set names them.
        data_source: ``torch#1`` ... ``torch#5``, ``transformers``.
        seeds: ids of the seeds it was composed of; empty for foreign sets.
        sizes: size constants by name.
        dtype: of the floating inputs.
        by_mode: train and eval mode differ, as its operators say (batch norm); stated, so no defect.
        composer: who composed it (``random``, ``llm:MODEL``, or the name of a foreign set).
        facts: measurements by name, filled in by the filters.
    """

    code: str
    ops: tuple[str, ...]
    data_source: str
    seeds: tuple[str, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    dtype: str = "float32"
    by_mode: bool = False
    composer: str = "random"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """SHA-256 of the source, 16 hex digits; :attr:`cuda_agent.task.Task.hash` of the shipped form."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]

    def code_at(self, form: Form) -> str:
        """The source in one of its forms."""
        from cuda_agent.synthesis.scale import with_sizes

        if form is Form.SHIPPED or not self.sizes:
            return self.code
        return with_sizes(self.code, {name: size.small for name, size in self.sizes.items()})

    def task(self) -> Task:
        """As the judge takes it, at the shipped sizes."""
        return Task(self.code, name=f"task_{self.id}", ops=self.ops, data_source=self.data_source)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskRecord:
        """Inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError: the data are of another form.
        """
        return cls(
            **{
                **data,
                "ops": tuple(data["ops"]),
                "seeds": tuple(data["seeds"]),
                "sizes": {name: Size(**size) for name, size in data["sizes"].items()},
            }
        )
