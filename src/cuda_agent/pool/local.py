"""The pool of one machine: a line of jobs, and for each device some judges that take from it.

Judges compile side by side; whatever touches a device holds its lease (taken inside the judge), so that
several judges of one device measure one after the other. A judge whose process is lost is replaced and its
job tried once more; a device that falls off is used by nobody any more.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cuda_agent.config import Device
from cuda_agent.errors import InfrastructureError, PoolError, UsageError
from cuda_agent.pool.contract import (
    DeviceMetrics,
    Job,
    JobState,
    JudgeRequest,
    PoolMetrics,
    check_limits,
    kind_of,
    lost,
    session_key,
)
from cuda_agent.pool.fair import FairQueue
from cuda_agent.pool.ledger import Ledger, Record
from cuda_agent.pool.worker_process import Reply, Worker, WorkerLimits, WorkerProcess
from cuda_agent.result import Result

_log = logging.getLogger(__name__)
_MAX_TRIES = 2
_MAX_CALLER_CHARS = 100


@dataclass(frozen=True)
class PoolConfig:
    """What a local pool is made of.

    Attributes:
        devices: names (``cpu``, ``cuda:0``); left empty, every GPU, else the CPU.
        workers: judges for each device; 0: one on a CPU, where a build beside a measurement disturbs it,
            some on a GPU.
        queue_limit: jobs that may wait, and of one caller.
        caller_limit: see ``queue_limit``.
        keep: ended jobs whose results are kept.
        keep_s: how long, seconds.
        worker: limits of one judge.
    """

    devices: tuple[str, ...] = ()
    workers: int = 0
    queue_limit: int = 256
    caller_limit: int = 128
    keep: int = 1000
    keep_s: float = 3600.0
    worker: WorkerLimits = field(default_factory=WorkerLimits)


@dataclass(eq=False)
class _Slot:
    """One judge's place on a device; ``worker`` is used by its own thread only."""

    device: str
    worker: Worker | None = None
    warm: tuple[str, ...] = ()
    running: Record | None = None


class LocalPool:
    """See :class:`cuda_agent.pool.contract.Pool`. A context manager.

    Args:
        config: devices, limits.
        make_worker: a worker for one device; processes of this machine when left out.

    Raises:
        UsageError: a device's name is none.
    """

    def __init__(
        self, config: PoolConfig | None = None, *, make_worker: Callable[[str], Worker] | None = None
    ) -> None:
        self._config = config or PoolConfig()
        self._make_worker = make_worker or (lambda _: WorkerProcess(self._config.worker))
        self._queue: FairQueue[Record] = FairQueue(
            limit=self._config.queue_limit, caller_limit=self._config.caller_limit
        )
        self._ledger = Ledger(keep=self._config.keep, keep_s=self._config.keep_s)
        self._changed = threading.Condition()
        self._started = time.monotonic()
        self._out_of_use: dict[str, str] = {}
        self._closed = self._draining = False
        self.devices = self._config.devices or default_devices()
        self._slots = [_Slot(device) for device in self.devices for _ in range(self._workers(device))]
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"pool-{slot.device}", daemon=True)
            for slot in self._slots
        ]
        for thread in self._threads:
            thread.start()

    # -- callers ------------------------------------------------------------------------------

    def submit(self, request: JudgeRequest, *, caller: str, job_id: str = "") -> str:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        request = self._placed(request)
        job_id = job_id or secrets.token_hex(16)
        record = Record(job_id, caller[:_MAX_CALLER_CHARS], request, key=session_key(request))
        with self._changed:
            if self._ledger.has(job_id):
                return job_id
            if self._closed or self._draining:
                raise PoolError("the pool is shutting down", "Try again when it is back.")
            if why := self._unusable(request):
                raise InfrastructureError(why, "Its owner must look at the device.")
            self._queue.put(record.caller, record)
            self._ledger.add(record)
            self._changed.notify_all()
        return record.id

    def job(self, job_id: str, *, wait_s: float = 0.0, seen: int = 0) -> Job:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        with self._changed:
            record = self._ledger.get(job_id)
            self._changed.wait_for(lambda: record.state.ended or record.num_lines > seen, timeout=wait_s)
            return record.job(self._queue.position(record.caller, record))

    def cancel(self, job_id: str) -> Job:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        with self._changed:
            record = self._ledger.get(job_id)
            if record.state is JobState.QUEUED and self._queue.remove(record.caller, record):
                self._ledger.end(record, JobState.CANCELLED)
            elif record.state is JobState.RUNNING:
                record.cancel.set()
            self._changed.notify_all()
            return record.job()

    def metrics(self) -> PoolMetrics:
        """See :class:`~cuda_agent.pool.contract.Pool`."""
        with self._changed:
            return PoolMetrics(
                queued=len(self._queue),
                running=self._num_running(),
                queue_limit=self._queue.limit,
                callers_waiting=self._queue.num_callers,
                verdicts_per_minute=self._ledger.verdicts_of_last_minute(),
                ended={str(state): count for state, count in self._ledger.counts.items()},
                kept=self._ledger.num_kept,
                warm_hits=self._ledger.warm_hits,
                uptime_s=time.monotonic() - self._started,
                devices=tuple(self._device_metrics(device) for device in self.devices),
            )

    def drain(self, limit_s: float) -> None:
        """Take no more jobs and start none; wait for those running, up to ``limit_s`` seconds."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_running() == 0, timeout=limit_s)

    def close(self) -> None:
        """Cancel what runs and waits, end every judge; may run twice."""
        with self._changed:
            self._closed = True
            for record in [*self._queue, *(s.running for s in self._slots if s.running)]:
                record.cancel.set()
                if self._queue.remove(record.caller, record):
                    self._ledger.end(record, JobState.CANCELLED)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- judges -------------------------------------------------------------------------------

    def _work(self, slot: _Slot) -> None:
        try:
            while (record := self._next(slot)) is not None:
                self._finish(slot, record, self._tried(slot, record))
        finally:
            self._drop_worker(slot)

    def _next(self, slot: _Slot) -> Record | None:
        """The next job for a judge; ``None`` when there will be none."""
        with self._changed:
            while not self._closed and slot.device not in self._out_of_use:
                record = None if self._draining else self._queue.take(lambda r: self._suits(r, slot))
                if record is not None:
                    slot.running, record.state, record.device = record, JobState.RUNNING, slot.device
                    record.started = record.started or time.monotonic()
                    record.tries += 1
                    return record
                self._changed.wait()
            return None

    def _suits(self, record: Record, slot: _Slot) -> bool:
        """The device is of the kind asked for, and no idle judge is warmer."""
        if record.request is None or record.request.config.device is not kind_of(slot.device):
            return False
        if record.key in slot.warm:
            return True
        idle = (s for s in self._slots if s.running is None and s.device not in self._out_of_use)
        return not any(record.key in other.warm for other in idle)

    def _tried(self, slot: _Slot, record: Record) -> Reply:
        request = record.request
        assert request is not None
        gpu = int(slot.device.partition(":")[2] or 0)
        request = replace(request, config=replace(request.config, gpu=gpu))

        def say(line: str) -> None:
            with self._changed:
                record.say(line)
                self._changed.notify_all()

        try:
            slot.worker = slot.worker or self._make_worker(slot.device)
            return slot.worker.judge(record.id, request, say=say, cancelled=record.cancel.is_set)
        except InfrastructureError as error:
            _log.warning("%s: %s", slot.device, error)
            self._drop_worker(slot)
            return Reply(result=lost(str(error), request))
        except Exception as error:  # noqa: BLE001 -- capture point: a fault of ours costs one job, no judge
            _log.exception("a judge of %s failed", slot.device)
            self._drop_worker(slot)
            return Reply(result=lost(f"the pool itself failed ({type(error).__name__}: {error})", request))

    def _finish(self, slot: _Slot, record: Record, reply: Reply) -> None:
        with self._changed:
            slot.running, slot.warm = None, reply.warm
            self._ledger.warm_hits += reply.warm_hit
            if reply.out_of_use:
                self._take_out(slot.device, reply.out_of_use)
            self._end(record, reply)
            self._changed.notify_all()

    def _end(self, record: Record, reply: Reply) -> None:
        result = reply.result
        if isinstance(reply.error, InfrastructureError) and record.request is not None:
            result = lost(str(reply.error), record.request)
        is_lost = result is not None and result.infrastructure is not None
        if reply.cancelled or (is_lost and record.cancel.is_set()):
            self._ledger.end(record, JobState.CANCELLED)
        elif result is None:
            self._ledger.end(record, JobState.REFUSED, error=reply.error)
        elif is_lost:
            self._again_or_lost(record, result)
        else:
            self._ledger.end(record, JobState.DONE, result=result)

    def _again_or_lost(self, record: Record, result: Result) -> None:
        assert record.request is not None
        if record.tries < _MAX_TRIES and not self._closed and not self._unusable(record.request):
            record.state = JobState.QUEUED
            record.say("our own side failed: judging again")
            self._queue.put_back(record.caller, record)
        else:
            self._ledger.end(record, JobState.LOST, result=result)

    def _take_out(self, device: str, why: str) -> None:
        """The device is used no more; jobs that no other device can take are lost now."""
        _log.error("%s: %s", device, why)
        self._out_of_use[device] = why
        for record in list(self._queue):
            assert record.request is not None
            if self._unusable(record.request) and self._queue.remove(record.caller, record):
                self._ledger.end(record, JobState.LOST, result=lost(why, record.request))

    def _drop_worker(self, slot: _Slot) -> None:
        worker, slot.worker, slot.warm = slot.worker, None, ()
        if worker is not None:
            worker.close()

    # -- devices ------------------------------------------------------------------------------

    def _placed(self, request: JudgeRequest) -> JudgeRequest:
        """The request with its device resolved and its GPU left to us.

        Raises:
            UsageError: the pool has no such device, or a limit is out of range.
        """
        check_limits(request.config)
        kinds = {kind_of(device) for device in self.devices}
        wanted = request.config.device
        if wanted is Device.AUTO:
            wanted = Device.CUDA if Device.CUDA in kinds else Device.CPU
        if wanted not in kinds:
            raise UsageError(f"the pool has no {wanted} device", f"It has {', '.join(self.devices)}.")
        return replace(request, config=replace(request.config, device=wanted, gpu=0))

    def _unusable(self, request: JudgeRequest) -> str:
        """Why no device of the request's kind is left; empty while there is one."""
        fitting = [d for d in self.devices if kind_of(d) is request.config.device]
        whys = [self._out_of_use.get(device, "") for device in fitting]
        return "; ".join(whys) if whys and all(whys) else ""

    def _workers(self, device: str) -> int:
        if self._config.workers:
            return self._config.workers
        return 1 if kind_of(device) is Device.CPU else max(1, min(4, (os.cpu_count() or 1) // 4))

    def _num_running(self) -> int:
        return sum(slot.running is not None for slot in self._slots)

    def _device_metrics(self, device: str) -> DeviceMetrics:
        slots = [slot for slot in self._slots if slot.device == device]
        return DeviceMetrics(
            device=device,
            workers=len(slots),
            running=sum(slot.running is not None for slot in slots),
            utilisation=self._ledger.utilisation(device),
            warm_sessions=sum(len(slot.warm) for slot in slots),
            out_of_use=self._out_of_use.get(device, ""),
        )


def default_devices() -> tuple[str, ...]:
    """Every GPU that answers, else the CPU."""
    from cuda_agent.backends import resolve_device
    from cuda_agent.backends.cuda import list_gpus

    if resolve_device(Device.AUTO) is Device.CPU:
        return ("cpu",)
    return tuple(f"cuda:{index}" for index, _ in enumerate(list_gpus()))
