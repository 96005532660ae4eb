"""Whether the GPU was the judge's alone while it timed, and at its full clocks.

Covers: processes of others that hold a context on the GPU and are busy there, and clocks held down by heat or
by the power supply, at moments 0.2 s apart from the start of a timed window to its end.

Who is "other" follows from process ids. Ours are this judge, the other judges of this device
(``pool/lease.py``: they wait while we hold the lease) and all that descends from them. NVML numbers processes
as the asking process's own namespace does (drivers since 2020), as the host does (older ones in a container),
or lists none. So the judge looks for its own id, since it holds a context itself:

- found: every other id is looked up in /proc, by its ancestors. One that is nobody's of ours is another.
- not found among some: ids cannot be matched. More entries than processes of ours that hold an NVIDIA device
  open means others.
- an empty list: nothing is known of others, and the verdict notes it.

A process that merely holds a context disturbs nothing: where the driver samples the use by process, an idle
one is a note. Where it does not, being there counts.

Does not cover: others between two looks, others hidden from this container, work of graphics and video
engines, and other GPUs' use of the same power supply or of the host.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.backends.cuda import list_gpus
from cuda_agent.judge.devices import Place
from cuda_agent.judge.nvml import POWER_CAP, SLOWDOWNS, Gpu, NvmlError
from cuda_agent.pool.lease import attendants
from cuda_agent.sandbox.process_tree import ancestors, members

_log = logging.getLogger(__name__)
_LOOK_S = 0.2


@dataclass
class Seen:
    """What was seen in one timed window, in words.

    Attributes:
        others: processes of others that were busy, or may have been.
        slowdowns: why clocks were held down.
        remarks: what is worth a note and disturbs nothing.
    """

    others: set[str] = field(default_factory=set)
    slowdowns: set[str] = field(default_factory=set)
    remarks: set[str] = field(default_factory=set)

    @property
    def disturbed(self) -> bool:
        """The times of this window are not the candidate's and eager's alone."""
        return bool(self.others or self.slowdowns)

    def __str__(self) -> str:
        return "; ".join([*sorted(self.others), *sorted(self.slowdowns)])


class Watch:
    """Looks at a device during timed windows. This one sees nothing: for a CPU.

    Args:
        remark: said of every window.
    """

    def __init__(self, remark: str = "") -> None:
        self._remark = remark

    @contextmanager
    def window(self, seen: Seen) -> Iterator[None]:
        """Look while the block runs; ``seen`` is complete when it ends, also by an error."""
        yield
        if self._remark:
            seen.remarks.add(self._remark)

    def close(self) -> None:
        """Let go of what it holds; may run twice."""


class GpuWatch(Watch):
    """Looks at one GPU through NVML.

    Args:
        gpu: to look at.
        judges: gives the process ids of the judges that share the device's lease, this one among them.
    """

    def __init__(self, gpu: Gpu, judges: Callable[[], Collection[int]]) -> None:
        super().__init__()
        self._gpu = gpu
        self._judges = judges

    @contextmanager
    def window(self, seen: Seen) -> Iterator[None]:
        look = _Looking(self._gpu, self._judges, seen)
        look.start()
        try:
            yield
        finally:
            look.finish()

    def close(self) -> None:
        self._gpu.close()


class _Looking:
    """One window: a thread that asks again and again, and what came of it."""

    def __init__(self, gpu: Gpu, judges: Callable[[], Collection[int]], seen: Seen) -> None:
        self._gpu = gpu
        self._judges = judges
        self._seen = seen
        self._others: dict[int, str] = {}
        self._is_ours: dict[int, bool] = {}
        self._found_ours = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="nvml", daemon=True)
        self._since_us = 0

    def start(self) -> None:
        self._since_us = int(time.time() * 1e6)
        self._look()
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        busy = self._gpu.busy(self._since_us) if self._others else None
        for pid, name in self._others.items():
            if busy is not None and not busy.get(pid):
                self._seen.remarks.add(f"{name} holds a context on the GPU and was idle")
            else:
                use = f"took up to {busy[pid]} % of the GPU" if busy else "may have used the GPU"
                self._seen.others.add(f"{name} {use}")

    def _loop(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        for ask in (self._look_at_clocks, self._look_for_others):
            try:
                ask()
            except NvmlError as error:
                self._seen.remarks.add(f"NVML could not be asked while timing ({error})")

    def _look_at_clocks(self) -> None:
        reasons = self._gpu.slowdowns()
        self._seen.slowdowns |= {
            f"clocks held down: {why}" for bit, why in SLOWDOWNS.items() if reasons & bit
        }
        if reasons & POWER_CAP:
            self._seen.remarks.add("the GPU ran at its power limit while timing, which holds its clocks down")

    def _look_for_others(self) -> None:
        listed = self._gpu.compute_processes()
        if not listed:
            self._seen.remarks.add(
                "NVML lists no process on the GPU, not even the judge: others cannot be seen from here"
            )
            return
        if os.getpid() in listed:
            self._others |= {pid: _name(pid) for pid in listed if not self._ours(pid)}
            return
        surplus = len(set(listed)) - _num_holders(self._judges())
        if surplus > 0:
            self._seen.others.add(f"{surplus} processes of others may have used the GPU")

    def _ours(self, pid: int) -> bool:
        if pid not in self._is_ours:
            judges = set(self._judges())
            self._is_ours[pid] = bool(judges & {pid, *ancestors(pid)})
        return self._is_ours[pid]


def open_watch(place: Place, gpu: int) -> Watch:
    """The watch over a place; of a GPU without NVML, one that notes it.

    Args:
        place: of the verdict.
        gpu: its index as CUDA counts.
    """
    if place.kind != "cuda":
        return Watch()
    try:
        return GpuWatch(Gpu(list_gpus()[gpu]["uuid"]), lambda: attendants(place.device))
    except (NvmlError, LookupError) as error:
        _log.warning("NVML cannot be asked: %s", error)
        return Watch("NVML is not here: other processes on the GPU and slowed clocks were not looked for")


def _name(pid: int) -> str:
    with suppress(OSError):
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return f"process {pid}"


def _num_holders(judges: Collection[int]) -> int:
    """How many of our processes may hold a context: those with an NVIDIA device open, or not to be read."""
    return sum(_may_hold(pid) for pid in {member for judge in judges for member in members(judge)})


def _may_hold(pid: int) -> bool:
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return True
    return any(_target(entry).startswith("/dev/nvidia") for entry in entries)


def _target(entry: Path) -> str:
    with suppress(OSError):  # closed since the listing
        return str(entry.readlink())
    return ""
