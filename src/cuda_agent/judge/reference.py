"""The judge's handle on the reference runner: draws, expected outputs, baseline times."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.config import JudgeConfig, Precision, Track
from cuda_agent.errors import InfrastructureError, TaskError
from cuda_agent.judge import exchange
from cuda_agent.judge.devices import Place, inductor_dir
from cuda_agent.judge.exchange import Block, Plan
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.processes import WorkerDied, WorkerError, WorkerProcess, open_block
from cuda_agent.result import Fault
from cuda_agent.sandbox.view import View
from cuda_agent.task import Task

_REMEDIES = {
    FailureKind.RANDOM: "Remove the random operator, or make it inactive in eval mode.",
    FailureKind.TOO_LARGE: "Shrink the shapes in get_inputs(), or use a device with more memory.",
    FailureKind.OUT_OF_MEMORY: "Shrink the shapes in get_inputs(), or use a device with more memory.",
    FailureKind.TASK: "Correct the task, or --inputs and --init; it must run in eager mode on this device.",
}


class ReferenceRefused(TaskError):
    """The reference cannot do what it was asked; its process says so, and goes on."""


@dataclass(frozen=True)
class Drawn:
    """One set of inputs, in memory the judge shares with the reference runner only.

    Attributes:
        plan, block: the inputs.
        words: each input in words (``float32[8,64]``).
    """

    plan: Plan
    block: Block
    words: tuple[str, ...]

    def close(self) -> None:
        """Release the memory; may run twice."""
        self.block.close()


@dataclass(frozen=True)
class Expected:
    """What the reference gives for one set of inputs.

    Attributes:
        plan: of the eager outputs alone (for sizing the candidate's output memory).
        outputs: eager outputs.
        outputs64: float64 outputs, or ``None``.
        changed: inputs the reference changed in place, by leaf index.
        finite: all eager outputs are finite.
        why64: why there are no float64 outputs; empty otherwise.
        shared: an output lies in an input's memory.
    """

    plan: Plan
    outputs: Any
    outputs64: Any
    changed: Mapping[int, torch.Tensor]
    finite: bool
    why64: str
    shared: bool
    block: Block

    def close(self) -> None:
        """Release the memory; the tensors must not be used after."""
        self.block.close()


class Reference:
    """One task's reference in a process of its own.

    Raises (every method):
        TaskError: the reference cannot be judged.
        InfrastructureError: the process was lost for a reason of ours.
    """

    def __init__(self, task: Task, config: JudgeConfig, place: Place, *, inductor: bool = False) -> None:
        self._task = task
        self._config = config
        self._place = place
        key = task.hash if inductor else None
        cache = inductor_dir(task.hash)
        if inductor:
            cache.mkdir(parents=True, exist_ok=True)
        self._worker = WorkerProcess(
            "reference_worker.py",
            env=place.worker_env(config, inductor_key=key),
            label="torch.compile baseline" if inductor else "reference runner",
            large_blocks=True,  # inputs, and outputs in two precisions
            view=View(
                write=(cache,) if inductor else (),
                read=tuple(Path(path) for path in task.search_path),
                gpu=place.kind == "cuda",
                user=f"inductor {task.hash}" if inductor else "",  # the cache is shared by its judges
            ),
        )
        self.weights: tuple[float, ...] = (1.0,)
        self.init_inputs: Any = None
        self.state: dict[str, torch.Tensor] = {}
        self.load_block: Block | None = None
        self.load_plan: Plan = {}
        self._slots: dict[str, Block] = {}

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._worker.is_alive()

    def wait_ready(self) -> None:
        """Wait for the process's imports, before any lease is taken."""
        try:
            self._worker.wait_ready()
        except (WorkerError, WorkerDied) as error:
            raise InfrastructureError(f"the reference runner does not start: {error}") from None

    def load(self, seed: int) -> None:
        """Import the task and build its model; ``init_inputs``, ``state`` and ``weights`` are set."""
        folder = self._worker.scratch / "task"
        folder.mkdir()
        (folder / "model.py").write_text(self._task.code, encoding="utf-8")
        for name, path in self._task.assets.items():
            shutil.copyfile(path, folder / Path(name).name)
        precision = self._config.precision if self._config.track is Track.MATCHED else Precision.DEFAULT
        answer, fds = self._ask(
            "load",
            device=self._place.worker_device,
            num_threads=self._place.num_threads,
            precision=str(precision),
            search_path=[str(folder), *self._task.search_path],
            path=str(folder / "model.py"),
            seed=seed,
            transport=self._place.transport,
        )
        self.load_plan, self.load_block = open_block(answer, fds, device=self._place.device)
        self.init_inputs, self.state = exchange.read(self.load_plan, self.load_block, copy=False)
        total = sum(answer["weights"])
        if not answer["weights"] or min(answer["weights"]) <= 0:
            raise TaskError("CASE_WEIGHTS must be positive numbers", _REMEDIES[FailureKind.TASK])
        self.weights = tuple(weight / total for weight in answer["weights"])

    def set_state(self, plan: Plan, block: Block) -> None:
        """Load parameters and buffers (a state_dict in shared memory)."""
        self._map({"state": block})
        self._ask("set_state", plan=plan)

    def draw(self, *, case: int, seed: int | None = None) -> Drawn:
        """Inputs from the task's own ``get_inputs``, by a secret seed unless one is given."""
        answer, fds = self._ask("draw", seed=secrets.randbits(62) if seed is None else seed, case=case)
        plan, block = open_block(answer, fds, device=self._place.device)
        return Drawn(plan, block, tuple(answer["inputs"]))

    def run(self, drawn: Drawn, *, float64: bool, check: bool = False) -> Expected:
        """Expected outputs.

        Args:
            drawn: inputs; left unchanged.
            float64: also run in float64.
            check: also require that the reference is a function of its inputs.
        """
        self._map({"in": drawn.block})
        return self._expected(*self._ask("run", plan=drawn.plan, slot="in", float64=float64, check=check))

    def construct_other(self, seed: int) -> bool:
        """Build a second model, its weights from another seed, for :meth:`run_other`.

        Returns:
            Whether its ``state_dict`` is the first one's all the same.
        """
        answer, _ = self._ask("construct_other", seed=seed)
        return bool(answer["same"])

    def run_other(self, drawn: Drawn) -> Expected:
        """What the model of other weights gives (:meth:`construct_other`), in eager."""
        self._map({"in": drawn.block})
        return self._expected(*self._ask("run", plan=drawn.plan, slot="in", float64=False, other=True))

    def _expected(self, answer: Mapping[str, Any], fds: Sequence[int]) -> Expected:
        plan, block = open_block(answer, fds, device=self._place.device)
        tree = exchange.read(plan, block, copy=False)
        return Expected(
            plan=exchange.describe(tree["outputs"]),
            outputs=tree["outputs"],
            outputs64=tree["outputs64"],
            changed={int(index): leaf for index, leaf in tree["changed"].items()},
            finite=answer["finite"],
            why64=answer["why64"],
            shared=bool(answer["shared"]),
            block=block,
        )

    def compile(self, sets: Sequence[Drawn]) -> None:
        """torch.compile, default mode, static shapes; runs it once on each input set.

        Raises:
            WorkerError, WorkerDied: torch.compile failed.
        """
        names = self._map_sets(sets)
        self._worker.ask("compile", limit_s=600.0, slots=names, plans=[d.plan for d in sets], mode=None)

    def time(
        self, which: str, sets: Sequence[Drawn], *, order: Sequence[int], warmup: int, keep_last: int
    ) -> list[float]:
        """Microseconds of calls on input sets; ``which`` is ``eager`` or ``compile``.

        As many outputs are held as of the candidate: fresh memory for each costs both alike.
        """
        names = self._map_sets(sets)
        answer, _ = self._ask(
            "time",
            which=which,
            slots=names,
            plans=[d.plan for d in sets],
            order=list(order),
            warmup=warmup,
            keep_last=keep_last,
        )
        return [float(sample) for sample in answer["samples"]]

    def burst(self, sets: Sequence[Drawn], *, num_calls: int, keep_last: int) -> None:
        """Eager calls back to back on input sets in turn, the last outputs held as of the candidate."""
        names = self._map_sets(sets)
        plans = [d.plan for d in sets]
        self._ask("burst", slots=names, plans=plans, num_calls=num_calls, keep_last=keep_last)

    def time_one(self, seen: Drawn, new: Drawn, *, flags: Block, release: Callable[[], None]) -> float:
        """Microseconds of one eager call, in the way the candidate's is timed (``Candidate.time_one``)."""
        self._map({"seen": seen.block, "new": new.block, "flags": flags})
        plans = [seen.plan, new.plan]
        with self._failures("time_one"):
            self._worker.begin("time_one", slots=["seen", "new"], plans=plans, flags="flags")
            release()
            answer, _ = self._worker.finish("time_one", limit_s=self._config.run_limit_s)
        return float(answer["sample"])

    def _map_sets(self, sets: Sequence[Drawn]) -> list[str]:
        self._map({f"t{index}": drawn.block for index, drawn in enumerate(sets)})
        return [f"t{index}" for index in range(len(sets))]

    def _map(self, blocks: Mapping[str, Block]) -> None:
        new = {name: block for name, block in blocks.items() if self._slots.get(name) is not block}
        if new:
            self._worker.map_slots(new, device=self._place.worker_device)
            self._slots.update(new)

    def _ask(self, op: str, **fields: Any) -> tuple[dict[str, Any], list[int]]:
        with self._failures(op):
            return self._worker.ask(op, limit_s=self._config.run_limit_s * 2, **fields)

    @contextmanager
    def _failures(self, op: str) -> Iterator[None]:
        """The process's failures as the task's or ours, never a candidate's."""
        name = self._task.name
        try:
            yield
        except WorkerError as error:
            if error.kind in _REMEDIES:
                cause = (
                    f"task {name} is too large for {self._place.device}: {error}"
                    if error.kind in (FailureKind.TOO_LARGE, FailureKind.OUT_OF_MEMORY)
                    else f"task {name}: {error}"
                )
                raise ReferenceRefused(cause, _REMEDIES[error.kind]) from None
            raise InfrastructureError(f"the reference runner failed at {op}: {error}") from None
        except WorkerDied as death:
            if death.killed_from_outside:
                raise InfrastructureError(f"the reference runner was killed during {op}: {death}") from None
            if death.fault is Fault.OUT_OF_MEMORY:
                raise TaskError(
                    f"task {name} was killed for want of memory during {op}", _REMEDIES[FailureKind.TOO_LARGE]
                ) from None
            raise TaskError(
                f"task {name}: the reference's process failed: {death}", _REMEDIES[FailureKind.TASK]
            ) from None

    def close(self) -> None:
        """End the process; may run twice."""
        self._worker.close()
        if self.load_block is not None:
            self.load_block.close()
            self.load_block = None
