"""A bounded queue in which callers take turns: one with a hundred jobs does not hold up one with one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from cuda_agent.pool.contract import QueueFullError

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Round-robin over callers, first in first out within one. Not thread-safe: its owner locks.

    Args:
        limit: items in all.
        caller_limit: items of one caller.
    """

    def __init__(self, *, limit: int, caller_limit: int) -> None:
        self.limit, self._caller_limit = limit, caller_limit
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def num_callers(self) -> int:
        """Callers with an item waiting."""
        return len(self._lines)

    def put(self, caller: str, item: T) -> None:
        """Add an item at the end of its caller's line.

        Raises:
            QueueFullError: no room in all, or in the caller's share.
        """
        if len(self) >= self.limit:
            raise QueueFullError(f"the pool's queue is full ({self.limit} jobs)", "Try again later.")
        if len(self._lines.get(caller, ())) >= self._caller_limit:
            raise QueueFullError(
                f"caller {caller} has {self._caller_limit} jobs waiting", "Wait for some of them first."
            )
        self._lines.setdefault(caller, deque()).append(item)

    def put_back(self, caller: str, item: T) -> None:
        """Return an item that was taken: first of its line, its caller's turn next, whatever the limits."""
        self._lines.setdefault(caller, deque()).appendleft(item)
        self._lines.move_to_end(caller, last=False)

    def take(self, suits: Callable[[T], bool]) -> T | None:
        """The item whose turn it is among each caller's first suitable ones; ``None`` if there is none."""
        for caller, line in self._lines.items():
            for item in line:
                if suits(item):
                    line.remove(item)
                    self._lines.move_to_end(caller)
                    self._drop_if_empty(caller)
                    return item
        return None

    def remove(self, caller: str, item: T) -> bool:
        """Take an item out, wherever it is in its line; whether it was there."""
        line = self._lines.get(caller, deque())
        if item not in line:
            return False
        line.remove(item)
        self._drop_if_empty(caller)
        return True

    def position(self, caller: str, item: T) -> int | None:
        """Items of the same caller before this one."""
        line = self._lines.get(caller, ())
        return next((n for n, other in enumerate(line) if other is item), None)

    def __iter__(self) -> Iterator[T]:
        for line in list(self._lines.values()):
            yield from list(line)

    def _drop_if_empty(self, caller: str) -> None:
        if not self._lines[caller]:
            del self._lines[caller]
