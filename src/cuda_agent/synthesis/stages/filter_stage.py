"""The filter stage: many tasks through the predicates, on several workers at once; counts by predicate."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.errors import InfrastructureError
from cuda_agent.synthesis.filters.client import Client, memory_share
from cuda_agent.synthesis.filters.predicates import PREDICATES
from cuda_agent.synthesis.filters.runner import Outcome, Runner
from cuda_agent.synthesis.floor import with_floor
from cuda_agent.synthesis.jsonl import Appender
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.stages.folder import SynthFolder, numbers_in
from cuda_agent.synthesis.target import Target

Numbered = tuple[int, TaskRecord]


@dataclass
class Tally:
    """Counts of a filter run.

    Attributes:
        asked: tasks taken in.
        refused: by predicate.
        accepted: tasks that passed.
        lost: tasks lost for a reason of our own side; they are taken again by the next run.
        workers_lost: workers that a task took down.
    """

    asked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    lost: int = 0
    workers_lost: int = 0

    def rows(self) -> Iterator[tuple[str, int, int, str, str]]:
        """By predicate, in order: name, tasks that reached it, tasks refused, threshold, reason."""
        left = self.asked - self.lost
        for predicate in PREDICATES:
            refused = self.refused[predicate.name]
            yield predicate.name, left, refused, predicate.threshold, predicate.reason
            left -= refused


class Pool:
    """Workers that take tasks through the filters, one thread each.

    Args:
        target: limits, window, device.
        num_workers: tasks at once.
        cache: folder of torch.compile's cache.
        threads_each: of a worker's operators.
        facts: of the device, for the memory floor; left out: no floor.
    """

    def __init__(
        self,
        target: Target,
        *,
        num_workers: int,
        cache: Path,
        threads_each: int = 1,
        facts: DeviceFacts | None = None,
    ) -> None:
        self._target = target
        self._num_workers = num_workers
        self._cache = cache
        self._threads_each = threads_each
        self._facts = facts
        self._alone = threading.Lock()
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o777)  # workers may have a user of their own

    def outcomes(
        self, tasks: Iterable[Numbered], stop: threading.Event
    ) -> Iterator[tuple[int, Outcome | None]]:
        """Outcomes in the order they come; ``None`` where our own side lost the task.

        Args:
            tasks: taken as workers become free.
            stop: once set, no further task is begun.
        """
        done: queue.Queue[tuple[int, Outcome | None] | BaseException | None] = queue.Queue()
        source, lock = iter(tasks), threading.Lock()

        def take() -> Numbered | None:
            with lock:
                return None if stop.is_set() else next(source, None)

        threads = [
            threading.Thread(target=self._work, args=(take, done.put), daemon=True)
            for _ in range(self._num_workers)
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                item = done.get()
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _work(self, take: Callable[[], Numbered | None], give: Callable[[Any], None]) -> None:
        """One thread: tasks until none is left; its workers are closed whatever happens."""
        clients = self._clients()
        runner = Runner(clients[0], clients[-1], self._target, alone=self._alone)
        try:
            while (task := take()) is not None:
                number, record = task
                try:
                    give((number, self._with_floor(runner.check(record))))
                except InfrastructureError:
                    give((number, None))
        except Exception as error:  # noqa: BLE001  handed to the thread that waits, which raises it
            give(error)
        finally:
            for client in clients:
                client.close()
            give(None)

    def _with_floor(self, outcome: Outcome) -> Outcome:
        return dataclasses.replace(outcome, record=with_floor(outcome.record, self._facts))

    def _clients(self) -> list[Client]:
        """A worker on the CPU, and one on the target where that is another device."""
        memory = memory_share(self._num_workers)
        kinds = ["cpu"] if self._target.device == "cpu" else ["cpu", self._target.device]
        return [
            Client(
                kind,
                num_threads=self._threads_each,
                cache=self._cache,
                memory_bytes=memory if kind == "cpu" else None,
            )
            for kind in kinds
        ]


def run_filters(
    tasks: Iterable[Numbered],
    folder: SynthFolder,
    pool: Pool,
    *,
    enough: Callable[[Tally], bool] = lambda _: False,
    on_outcome: Callable[[Tally, int, Outcome], None] = lambda *_: None,
) -> Tally:
    """Filter tasks and keep what comes out; tasks with an outcome in the folder are not run again.

    Args:
        tasks: to filter.
        folder: receives ``accepted`` and ``rejected``.
        pool: workers.
        enough: says when to stop.
        on_outcome: told of each outcome, with the counts so far.
    """
    known = numbers_in([folder.accepted, folder.rejected])
    tally, stop = Tally(), threading.Event()
    fresh = (task for task in tasks if task[0] not in known)
    with Appender(folder.accepted) as accepted, Appender(folder.rejected) as rejected:
        for number, outcome in pool.outcomes(fresh, stop):
            tally.asked += 1
            if outcome is None:
                tally.lost += 1
                continue
            _keep(number, outcome, tally, accepted if outcome.accepted else rejected)
            on_outcome(tally, number, outcome)
            if enough(tally):
                stop.set()
    return tally


def _keep(number: int, outcome: Outcome, tally: Tally, file: Appender) -> None:
    record = outcome.record
    if outcome.accepted:
        tally.accepted += 1
        file.append({"number": number, "record": record.to_dict(), "margins": dict(outcome.margins)})
        return
    tally.refused[outcome.failed] += 1
    file.append(
        {
            "number": number,
            "id": record.id,
            "ops": list(record.ops),
            "seeds": list(record.seeds),
            "predicate": outcome.failed,
            "detail": outcome.detail,
        }
    )
