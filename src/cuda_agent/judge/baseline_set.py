"""Baselines of many tasks: compiled in parallel, measured alone, resumed where a run was cut off.

In rounds: processes are started and compile, several at once, until as many wait as memory allows; then,
with nobody else at work, each is measured and thrown away. A task that crashes, hangs or does not fit
costs itself only: it is tried once more alone, without the line it failed at.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import JudgeConfig
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.baseline import BaselineCache
from cuda_agent.judge.baseline_cache import SetCache, precision_of
from cuda_agent.judge.baseline_lines import LineTimes, TaskBaselines
from cuda_agent.judge.baseline_memory import MemoryBudget
from cuda_agent.judge.baseline_names import Line, Pass, groups_of
from cuda_agent.judge.baseline_process import BaselineProcess, Ended, TooLittleMemory
from cuda_agent.judge.baseline_work import roofline
from cuda_agent.judge.devices import Place
from cuda_agent.pool.lease import lease
from cuda_agent.task import Task
from cuda_agent.tasks.selection import Selectable

_log = logging.getLogger(__name__)

Say = Callable[[str], None]
Failure = Ended | TooLittleMemory | InfrastructureError
_FAILURES = (Ended, TooLittleMemory, InfrastructureError)
_PROCESS_BYTES = 2 << 30
"""Host memory to reckon with for one process that waits."""
_MAX_WAITING = 40
_MEMORY_SHARE = 0.7
"""Of the device's, for tasks that compile; the rest is for the contexts and weights of those that wait."""


@dataclass(frozen=True)
class Measured:
    """A task whose lines were just measured, or found in the cache.

    Attributes:
        entry: the task.
        lines: which.
        baselines: all that is known of it.
        cached: nothing had to be measured.
    """

    entry: Selectable
    lines: tuple[Line, ...]
    baselines: TaskBaselines
    cached: bool = False


@dataclass(frozen=True)
class _Todo:
    entry: Selectable
    lines: tuple[Line, ...]
    failed: Mapping[Line, LineTimes]


class SetBaselines:
    """Measures tasksets on one device under one contract.

    Args:
        config: precision and GPU; ``device`` must be resolved (not ``auto``).
        place: the device.
        facts: its measured peaks.
        versions: that times depend on.
        jobs: compilations at once; as many as there are cores, less two, when left out.
        compile_limit_s: seconds for one compilation.
        say: receives remarks.
    """

    def __init__(
        self,
        config: JudgeConfig,
        place: Place,
        facts: DeviceFacts,
        *,
        versions: Mapping[str, str],
        jobs: int | None = None,
        compile_limit_s: float = 900.0,
        say: Say = lambda _: None,
    ) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._config, self._place, self._facts, self._versions = config, place, facts, versions
        self._jobs = jobs or max(1, self._cores - 2)
        self._limit_s, self._say = compile_limit_s, say
        self._lost: list[str] = []
        self.cache = SetCache(
            config,
            kind=place.kind,
            device_name=facts.name,
            versions=versions,
            num_threads=place.num_threads,
        )

    def run(self, entries: Sequence[Selectable], which: Pass, *, fresh: bool = False) -> Iterator[Measured]:
        """Measure what the cache lacks, one group of lines after another; a task is on disk when given.

        Args:
            entries: the tasks; dearer ones (of higher level) are started first.
            which: pass.
            fresh: measure anew what the cache has.

        Raises:
            InfrastructureError: after all others, where tasks were lost for a reason of ours.
        """
        self._lost.clear()
        for lines in groups_of(which, self._place.kind):
            todo: deque[_Todo] = deque()
            for entry in sorted(entries, key=lambda e: -(e.level or 0)):
                known = self.cache.get(entry.task.hash)
                if not fresh and all(line in known.lines for line in lines):
                    yield Measured(entry, lines, known, cached=True)
                else:
                    todo.append(_Todo(entry, lines, {}))
            if todo and Line.EAGER in lines:
                with lease(self._place.device):
                    self._tf32_peak()
            yield from self._group(todo)
        if self._lost:
            raise InfrastructureError(
                f"no outcome for {', '.join(self._lost)}", "Run the command again: it goes on from there."
            )

    def _group(self, todo: deque[_Todo]) -> Iterator[Measured]:
        again: deque[_Todo] = deque()
        while todo:
            yield from self._round(todo, again)
        if again:
            self._say(f"once more, each alone: {', '.join(item.entry.id for item in again)}")
        while again:
            yield from self._round(again, None)

    # -- a round ------------------------------------------------------------------------------

    def _round(self, todo: deque[_Todo], again: deque[_Todo] | None) -> Iterator[Measured]:
        """Compile some tasks in parallel, then measure them one by one.

        Args:
            todo: taken from its left.
            again: receives those to be tried once more; ``None``: one of ``todo`` is tried alone, for good.
        """
        with lease(self._place.device), ExitStack() as stack:
            ready: list[tuple[_Todo, BaselineProcess]] = []
            for item, process, error in self._compile(todo, 1 if again is None else self._room(), stack):
                if error is None:
                    ready.append((item, process))
                elif (done := self._gave_up(item, process, error, again)) is not None:
                    yield done
            for item, process in ready:
                try:
                    process.measure(alone=again is None)
                except _FAILURES as error:
                    if (done := self._gave_up(item, process, error, again)) is not None:
                        yield done
                else:
                    yield self._store(item, process)
                finally:
                    process.close()

    def _compile(
        self, todo: deque[_Todo], room: int, stack: ExitStack
    ) -> Iterator[tuple[_Todo, BaselineProcess, Failure | None]]:
        """Processes as they become ready, or fail; at most ``room`` are made.

        They are made in this thread: a process dies with the thread that made it.
        """
        jobs = min(self._jobs, room)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        budget = MemoryBudget(int(_MEMORY_SHARE * self._facts.memory_bytes))
        running: dict[Future[None], tuple[_Todo, BaselineProcess]] = {}
        num_made = 0
        while running or (todo and num_made < room):
            while todo and num_made < room and len(running) < jobs:
                item = todo.popleft()
                process = BaselineProcess(
                    item.entry.task,
                    self._config,
                    self._place,
                    lines=item.lines,
                    compile_threads=max(1, self._cores // jobs),
                )
                stack.callback(process.close)
                work = Line.EAGER in item.lines
                future = pool.submit(process.prepare, budget, limit_s=self._limit_s, work=work)
                running[future] = (item, process)
                num_made += 1
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item, process = running.pop(future)
                try:
                    future.result()
                except _FAILURES as error:
                    process.close()
                    yield item, process, error
                else:
                    yield item, process, None

    def _room(self) -> int:
        """Processes that may wait at once."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return max(1, min(_MAX_WAITING, int(0.5 * memory / _PROCESS_BYTES)))

    # -- outcomes -----------------------------------------------------------------------------

    def _gave_up(
        self, item: _Todo, process: BaselineProcess, error: Failure, again: deque[_Todo] | None
    ) -> Measured | None:
        """Put a task aside for another try, or store why its lines are missing."""
        why = str(error)
        _log.info("%s: %s", item.entry.id, why)
        if isinstance(error, InfrastructureError):
            self._say(f"{item.entry.id}: {why}")
            self._lost.append(item.entry.id)
            return None
        if again is not None and isinstance(error, TooLittleMemory):
            again.append(item)
            return None
        if again is not None and (at := _blamed(item, error)) is not None:
            rest = tuple(line for line in item.lines if line is not at)
            again.append(replace(item, lines=rest, failed={**item.failed, at: LineTimes(why=why)}))
            return None
        process.found = {line: LineTimes(why=why) for line in item.lines}
        return self._store(item, process)

    def _store(self, item: _Todo, process: BaselineProcess) -> Measured:
        found = {**item.failed, **process.found}
        work = None
        if process.counts:
            work = roofline(
                process.counts,
                process.weights,
                facts=self._facts,
                precision=precision_of(self._config),
                tf32_flops=self.cache.get_tf32_peak(),
            )
        self._feed_judge(item.entry.task, found)
        baselines = self.cache.add(item.entry.task.hash, found, work=work)
        return Measured(item.entry, item.lines, baselines)

    def _feed_judge(self, task: Task, found: Mapping[Line, LineTimes]) -> None:
        """What the judge would measure itself at a task's first verdict, it finds in its own cache."""
        eager, compiled = found.get(Line.EAGER), found.get(Line.COMPILE)
        if eager is None or compiled is None:
            return
        cache = BaselineCache(
            task, self._config, self._place, device_name=self._facts.name, versions=self._versions
        )
        for case, (ours, theirs) in enumerate(zip(eager.samples, compiled.samples, strict=False)):
            if cache.get(case) is None:
                cache.put(case, eager=ours, compile=theirs)

    def _tf32_peak(self) -> None:
        """Measured once for a device, in a process of its own; the lease is held."""
        if self._place.kind == "cpu" or self.cache.get_tf32_peak() is not None:
            return
        process = BaselineProcess(_TINY, self._config, self._place, lines=(), compile_threads=1)
        try:
            self.cache.put_tf32_peak(process.tf32_peak())
        except (Ended, TooLittleMemory) as error:
            self._say(f"the TF32 peak could not be measured, floors use the FP32 peak: {error}")
        finally:
            process.close()


def _blamed(item: _Todo, error: Failure) -> Line | None:
    """The line to leave out of another try; ``None`` where there is no use in one."""
    if not isinstance(error, Ended) or error.final or len(item.lines) < 2:
        return None
    # A process that had compiled and run all else most likely died of recording its graph.
    at = error.line or (Line.CUDA_GRAPH if Line.CUDA_GRAPH in item.lines else None)
    return None if at is Line.EAGER else at


_TINY = Task(
    code="from torch import nn\n\n\nclass Model(nn.Module):\n    pass\n\n\n"
    "def get_inputs():\n    return []\n\n\ndef get_init_inputs():\n    return []\n",
    name="peak",
)
