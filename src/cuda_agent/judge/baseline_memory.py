"""Device memory that tasks share while they compile side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

NEEDED_PER_INPUT_BYTE = 4
"""Inputs, outputs and intermediate tensors, by the size of the inputs; the judge asks for as much."""

BASE_BYTES = 2 << 30
"""Beside that: weights, workspaces, what the caching allocator holds on to."""

UNKNOWN_BYTES = 8 << 30
"""Taken where a task's inputs cannot be sized without drawing them."""


class MemoryBudget:
    """So much memory, handed out in the order asked for; from any thread.

    Args:
        total: bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @contextmanager
    def hold(self, input_bytes: int | None) -> Iterator[None]:
        """Hold what a task with inputs of this size needs; one that needs more than all gets all."""
        needed = UNKNOWN_BYTES if input_bytes is None else NEEDED_PER_INPUT_BYTE * input_bytes + BASE_BYTES
        needed = min(needed, self._total)
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= needed)
            self._queue.popleft()
            self._free -= needed
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += needed
                self._changed.notify_all()
