"""The judge's side of one process that measures lines of one task's baselines."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.baseline_cache import precision_of
from cuda_agent.judge.baseline_lines import LineTimes
from cuda_agent.judge.baseline_memory import MemoryBudget
from cuda_agent.judge.baseline_names import SETTINGS, Line
from cuda_agent.judge.devices import Place, inductor_dir
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.processes import WorkerDied, WorkerError, WorkerProcess
from cuda_agent.result import Fault
from cuda_agent.sandbox.view import View
from cuda_agent.task import Task

_START_S = 300.0
_MEASURE_S = 600.0
_CROWDED = (FailureKind.TOO_LARGE, FailureKind.OUT_OF_MEMORY)


class TooLittleMemory(Exception):
    """What was asked does not fit, beside the other processes at least."""


class Ended(Exception):
    """The process ended or hung, or the task's code raised.

    Attributes:
        line: at which line; ``None`` when it was none in particular.
        final: another try would end in the same way.
    """

    def __init__(self, message: str, line: Line | None = None, *, final: bool = False) -> None:
        super().__init__(message)
        self.line, self.final = line, final


class BaselineProcess:
    """One disposable process with one task; it is started at once, and dies with the thread that made it.

    Args:
        task: the reference.
        config: precision and GPU.
        place: the device.
        lines: what it is to measure.
        compile_threads: threads of one compilation (CUDA).

    Attributes:
        found: outcome by line, as far as it is known.
        counts: bytes and operations of each case, where they could be counted.
        weights: of the cases.

    Raises (the methods):
        TooLittleMemory, Ended: as they say; the process is of no use then.
        InfrastructureError: it was killed from outside.
    """

    def __init__(
        self, task: Task, config: JudgeConfig, place: Place, *, lines: Sequence[Line], compile_threads: int
    ) -> None:
        self.lines = tuple(lines)
        self.found: dict[Line, LineTimes] = {}
        self.counts: list[dict[str, float]] = []
        self.weights: tuple[float, ...] = (1.0,)
        self._task, self._config, self._place = task, config, place
        self._seed = secrets.randbits(31)
        cache = inductor_dir(task.hash)
        cache.mkdir(parents=True, exist_ok=True)
        env = dict(place.worker_env(config, inductor_key=task.hash))
        env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(compile_threads))
        self._worker = WorkerProcess(
            "baseline_worker.py",
            env=env,
            label="baseline",
            large_blocks=True,
            view=View(
                write=(cache,),
                read=tuple(Path(path) for path in task.search_path),
                gpu=place.kind == "cuda",
                user=f"inductor {task.hash}",
            ),
        )

    def prepare(self, budget: MemoryBudget, *, limit_s: float, work: bool) -> None:
        """Import, build, compile; may run beside other processes.

        Args:
            budget: device memory that these share.
            limit_s: seconds for one line.
            work: also count bytes and operations.
        """
        with budget.hold(self._input_bytes()):
            self._load()
            for line in self.lines:
                self._prepare(line, limit_s)
            if work:
                for case in range(len(self.weights)):
                    self._count(case)

    def measure(self, *, alone: bool) -> None:
        """Time the lines and try the settings' outputs; the device must be held, and nobody else at work.

        Args:
            alone: no other process holds memory: a line that finds too little fails for good.
        """
        every = (*self.lines, *(line for line in self.found if line not in self.lines))
        for line in every:
            if line in SETTINGS and not self._why(line):
                self._agree(line)
        samples: dict[Line, list[tuple[float, ...]]] = {}
        for case in range(len(self.weights)):
            lines = [str(line) for line in every if not self._why(line)]
            answer = self._ask("measure", _MEASURE_S, lines=lines, case=case, seed=self._seed, alone=alone)
            for name, why in answer["why"].items():
                self._fail(Line(name), why)
            for name, values in answer["samples"].items():
                samples.setdefault(Line(name), []).append(tuple(float(v) for v in values))
        for line, cases in samples.items():
            if len(cases) == len(self.weights):
                self.found[line] = replace(self.found[line], samples=tuple(cases), weights=self.weights)

    def tf32_peak(self) -> float:
        """Measured TF32 rate of the device, FLOP per second (CUDA)."""
        self._input_bytes()
        self._load()
        return float(self._ask("tf32_peak", _MEASURE_S)["flops"])

    def close(self) -> None:
        """End the process; may run twice."""
        self._worker.close()

    # -- steps --------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self._worker.scratch / "task"

    def _input_bytes(self) -> int | None:
        """Import the task (no device is touched) and size its inputs; ``None`` where that cannot be done."""
        self._folder.mkdir()
        (self._folder / "model.py").write_text(self._task.code, encoding="utf-8")
        for name, path in self._task.assets.items():
            shutil.copyfile(path, self._folder / Path(name).name)
        answer = self._ask("size", _START_S, path=self._path, search_path=self._search_path)
        return None if answer["nbytes"] is None else int(answer["nbytes"])

    @property
    def _path(self) -> str:
        return str(self._folder / "model.py")

    @property
    def _search_path(self) -> list[str]:
        return [str(self._folder), *self._task.search_path]

    def _load(self) -> None:
        answer = self._ask(
            "load",
            _START_S,
            device=self._place.worker_device,
            num_threads=self._place.num_threads,
            precision=str(precision_of(self._config)),
            search_path=self._search_path,
            path=self._path,
            seed=self._seed,
            transport="host",
        )
        total = sum(answer["weights"])
        self.weights = tuple(weight / total for weight in answer["weights"])

    def _prepare(self, line: Line, limit_s: float) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            answer = self._ask("prepare", limit_s, line=line, num_cases=len(self.weights), seed=self._seed)
            self.found[line] = LineTimes(compile_s=float(answer["seconds"]), measured=now)
        except WorkerError as error:
            if line is Line.EAGER:
                raise Ended(_short(error), final=True) from None
            self.found[line] = LineTimes(why=_short(error), measured=now)
            if line is Line.HALF and self._place.kind == "cpu":
                self._prepare(Line.BF16_MODEL, limit_s)

    def _count(self, case: int) -> None:
        try:
            self.counts.append(dict(self._ask("work", _MEASURE_S, case=case, seed=self._seed)))
        except WorkerError:
            self.counts.clear()  # an operator that the counter cannot run costs the floor only

    def _agree(self, line: Line) -> None:
        try:
            answer = self._ask("agree", _MEASURE_S, line=line, num_cases=len(self.weights), seed=self._seed)
        except WorkerError as error:
            self._fail(line, _short(error))
            return
        worst = float(answer["worst"])
        finite = math.isfinite(worst)
        self.found[line] = replace(
            self.found[line], valid=finite and worst <= 1.0, error=worst if finite else None
        )

    def _why(self, line: Line) -> str:
        return self.found[line].why if line in self.found else "not prepared"

    def _fail(self, line: Line, why: str) -> None:
        self.found[line] = replace(self.found[line], why=why)

    def _ask(self, op: str, limit_s: float, **fields: Any) -> Mapping[str, Any]:
        """An answer; what memory came with it is closed.

        Raises:
            WorkerError: a line cannot be built or run.
        """
        line = Line(fields["line"]) if "line" in fields else None
        try:
            answer, fds = self._worker.ask(op, limit_s=limit_s, **fields)
        except WorkerError as error:
            if error.kind in _CROWDED:
                raise TooLittleMemory(_short(error)) from None
            if op in ("prepare", "work", "agree"):
                raise
            raise Ended(_short(error), line, final=op in ("size", "load")) from None
        except WorkerDied as death:
            if death.fault is Fault.OUT_OF_MEMORY:
                raise TooLittleMemory(_short(death)) from None
            if death.killed_from_outside:
                raise InfrastructureError(f"a baseline's process was killed: {death}") from None
            raise Ended(_short(death), line) from None
        for fd in fds:
            os.close(fd)
        return {key: value for key, value in answer.items() if key != "ok"}


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
