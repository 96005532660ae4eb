"""The mine stage: every subject of a library becomes a seed, or is listed with the reason it is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.processes import WorkerDied, WorkerError, WorkerProcess
from cuda_agent.sandbox.view import View
from cuda_agent.synthesis.filters.client import memory_share
from cuda_agent.synthesis.jsonl import Appender, read_rows
from cuda_agent.synthesis.mine.sources import copies
from cuda_agent.synthesis.seed import Seed, read_seeds, write_seeds
from cuda_agent.synthesis.stages.folder import SynthFolder

_WORKER = Path(__file__).parents[1] / "mine" / "worker.py"

Subject = tuple[str, str]
"""Name of a source, id."""


@dataclass(frozen=True)
class Mining:
    """How subjects are tried.

    Attributes:
        num_workers: subjects at once, each in a process of its own.
        limit_s: for one subject; a process that takes longer is ended, and the subject is no seed.
        worker: script that the processes run.
    """

    num_workers: int = 1
    limit_s: float = 90.0
    worker: Path = _WORKER


@dataclass(frozen=True)
class Mined:
    """What came of one subject: a seed, or the reason that there is none."""

    id: str
    seed: Seed | None
    reason: str = ""


def run_mine(
    folder: SynthFolder,
    subjects: Sequence[Subject],
    mining: Mining,
    *,
    on_subject: Callable[[int], None] = lambda _: None,
) -> Counter[str]:
    """Mine subjects; those that have an outcome in the folder are not tried again.

    Args:
        folder: receives ``seeds`` and ``unfit``, a row for each subject as it is done.
        subjects: of :func:`cuda_agent.synthesis.mine.sources.wanted`.
        mining: how.
        on_subject: told of the number of subjects done.

    Returns:
        Subjects of the folder by reason; ``seed`` for those that became one.

    Raises:
        InfrastructureError: no worker can be started.
    """
    known = {str(row["id"]) for path in (folder.seeds, folder.unfit) for row in read_rows(path)}
    todo = [subject for subject in subjects if subject[1] not in known]
    done = len(subjects) - len(todo)
    on_subject(done)
    with Appender(folder.seeds) as seeds, Appender(folder.unfit) as unfit:
        for mined in _mined(todo, mining):
            if mined.seed is not None:
                seeds.append(mined.seed.to_dict())
            else:
                unfit.append({"id": mined.id, "reason": mined.reason})
            done += 1
            on_subject(done)
    _sort(folder, subjects)
    counts = Counter(str(row["reason"]) for row in read_rows(folder.unfit))
    return counts + Counter({"seed": sum(1 for _ in read_rows(folder.seeds))})


def _sort(folder: SynthFolder, subjects: Sequence[Subject]) -> None:
    """Seeds in the order of the walk, each operator once, so that two runs give the same file."""
    order = {id_: number for number, (_, id_) in enumerate(subjects)}
    found = {seed.id: seed for seed in read_seeds(folder.seeds)}
    seeds = sorted(found.values(), key=lambda seed: order.get(seed.id, len(order)))
    repeated = copies(seeds)
    with Appender(folder.unfit) as unfit:
        for id_, reason in repeated.items():
            unfit.append({"id": id_, "reason": reason})
    write_seeds(folder.seeds, (seed for seed in seeds if seed.id not in repeated))


def _mined(todo: Sequence[Subject], mining: Mining) -> Iterator[Mined]:
    slots: SimpleQueue[_Slot] = SimpleQueue()
    made = [_Slot(mining) for _ in range(mining.num_workers)]
    for slot in made:
        slots.put(slot)

    def one(subject: Subject) -> Mined:
        slot = slots.get()
        try:
            return slot.mine(subject)
        finally:
            slots.put(slot)

    pool = ThreadPoolExecutor(mining.num_workers)
    try:
        for future in as_completed([pool.submit(one, subject) for subject in todo]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for slot in made:
            slot.close()
        pool.shutdown()


class _Slot:
    """One worker, replaced when a subject took it down."""

    def __init__(self, mining: Mining) -> None:
        self._mining = mining
        self._worker: WorkerProcess | None = None

    def mine(self, subject: Subject) -> Mined:
        """What comes of one subject."""
        source, id_ = subject
        worker = self._worker = self._worker or self._started()
        try:
            answer = worker.ask("mine", limit_s=self._mining.limit_s, source=source, id=id_)[0]
        except WorkerError as error:
            return Mined(id_, None, _line(str(error)))
        except WorkerDied as death:
            self.close()
            return Mined(id_, None, f"it took its process down: {_line(str(death))}")
        found = answer["seed"]
        return Mined(id_, None if found is None else Seed.from_dict(found), answer["reason"])

    def _started(self) -> WorkerProcess:
        worker = WorkerProcess(
            self._mining.worker,
            env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
            label="miner",
            view=View(read=(self._mining.worker.parent,)),
            memory_bytes=memory_share(self._mining.num_workers),
        )
        try:
            worker.ask("start", limit_s=180.0)
        except (WorkerError, WorkerDied) as error:
            worker.close()
            raise InfrastructureError(f"the miner's worker does not start: {error}") from None
        return worker

    def close(self) -> None:
        """End the worker; may run twice."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _line(text: str) -> str:
    return " ".join(text.split())[:160]
