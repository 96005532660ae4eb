"""torch.compile's time for a task: measured live in a clean process, cached with eager's time beside it.

A cached time is rescaled by eager-now over eager-then; a full verdict re-measures when the two differ by
more than 2 % (docs/judging.md, "Time, and what can be trusted").
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from cuda_agent.config import JudgeConfig, Track, cache_dir
from cuda_agent.errors import CudaAgentError, InfrastructureError
from cuda_agent.judge.devices import Place
from cuda_agent.judge.processes import WorkerDied, WorkerError
from cuda_agent.judge.reference import Drawn, Reference
from cuda_agent.result import Times
from cuda_agent.task import Task

_log = logging.getLogger(__name__)

MAX_DRIFT = 0.02
"""Share by which eager may have moved before a full verdict measures torch.compile anew."""

_NUM_TRIES = 2
_KEPT_SAMPLES = 200


@dataclass(frozen=True)
class CachedCase:
    """One case's baselines when they were measured: samples, microseconds.

    Attributes:
        eager, compile: samples; ``compile`` is empty when torch.compile failed.
        why: why it failed.
        measured: date and time, UTC.
    """

    eager: tuple[float, ...]
    compile: tuple[float, ...]
    why: str
    measured: str

    def rescaled(self, eager_now: float) -> Times | None:
        """The cached torch.compile time as it would be now, from eager's median now (microseconds)."""
        if not self.compile:
            return None
        scale = eager_now / Times.of(self.eager).median
        return Times.of([sample * scale for sample in self.compile])

    def drift(self, eager_now: float) -> float:
        """How far eager has moved since, as a share."""
        return abs(eager_now / Times.of(self.eager).median - 1.0)


class BaselineCache:
    """Cached baselines of one task under one contract on one device with one set of versions."""

    def __init__(
        self, task: Task, config: JudgeConfig, place: Place, *, device_name: str, versions: Mapping[str, str]
    ) -> None:
        precision = str(config.precision) if config.track is Track.MATCHED else "default"
        key = json.dumps([task.hash, device_name, sorted(versions.items()), precision, place.num_threads])
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        self._path = cache_dir() / "baselines" / f"{name}.json"

    def get(self, case: int) -> CachedCase | None:
        """The cached case, or ``None``; an unreadable file counts as absent."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))[str(case)]
            return CachedCase(tuple(data["eager"]), tuple(data["compile"]), data["why"], data["measured"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, case: int, *, eager: Sequence[float], compile: Sequence[float], why: str = "") -> None:
        """Store a case (atomic; a full disk only costs the cache)."""
        entry = CachedCase(_thin(eager), _thin(compile), why, datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._path.parent, delete=False, encoding="utf-8"
            ) as file:
                json.dump({**known, str(case): asdict(entry)}, file)
            Path(file.name).replace(self._path)
        except OSError as error:
            _log.warning("baseline not cached: %s", os.strerror(error.errno or 0))


def _thin(samples: Sequence[float]) -> tuple[float, ...]:
    step = max(1, len(samples) // _KEPT_SAMPLES)
    return tuple(samples[::step])


class Compiler:
    """A process of its own with the reference compiled by torch.compile, kept warm between verdicts."""

    def __init__(self, task: Task, config: JudgeConfig, place: Place, *, seed: int) -> None:
        self._task, self._config, self._place, self._seed = task, config, place, seed
        self._reference: Reference | None = None
        self._case: int | None = None
        self.why = ""
        self._last_error = ""

    def start(self) -> None:
        """Start the process; it imports torch while the judge does other things."""
        if self._reference is not None and not self._reference.is_alive():
            self.close()
        if self._reference is None and not self.why:
            self._reference = Reference(self._task, self._config, self._place, inductor=True)
            self._case = None

    def wait_ready(self) -> None:
        """Wait for the imports of a started process, before any lease is taken."""
        if self._reference is not None:
            with suppress(CudaAgentError):
                self._reference.wait_ready()

    def compiled(self, case: int, sets: Sequence[Drawn]) -> Reference | None:
        """The reference compiled for a case's shapes, or ``None`` when torch.compile failed twice.

        ``why`` then says why.

        Raises:
            InfrastructureError: it failed for want of disk space, which says nothing of the task.
        """
        if self._reference is not None and self._case == case and self._reference.is_alive():
            return self._reference
        for _ in range(_NUM_TRIES):
            if self.why:
                break
            if self._try(case, sets):
                return self._reference
        if os.strerror(errno.ENOSPC) in self._last_error:
            raise InfrastructureError(self._last_error, "Free some disk space, or set CUDA_AGENT_CACHE.")
        if self._last_error and not self.why:
            self.why = self._last_error
        return None

    def _try(self, case: int, sets: Sequence[Drawn]) -> bool:
        try:
            self.start()
            assert self._reference is not None
            if self._reference.load_block is None:
                self._reference.load(self._seed)
            self._reference.compile(sets[:1])
        except (WorkerError, WorkerDied, CudaAgentError) as error:
            self._last_error = f"torch.compile failed: {' '.join(str(error).split())[:300]}"
            _log.info("%s", self._last_error)
            self.close()
            return False
        self._case = case
        return True

    def close(self) -> None:
        """End the process; may run twice."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None
            self._case = None
