"""The judge's handle on one candidate's process: inputs in, output bytes out, evidence on the side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig
from cuda_agent.judge import exchange
from cuda_agent.judge.answers import form_of, reading, samples_of, sets_of, texts_of
from cuda_agent.judge.devices import Place
from cuda_agent.judge.exchange import Block, Plan
from cuda_agent.judge.processes import WorkerProcess, close_all
from cuda_agent.sandbox.view import View

_MOST_SETTINGS = 32
_POISON = 0xFF  # every float of these bytes is NaN


@dataclass(frozen=True)
class Produced:
    """What one call of the candidate gave, read from the judge's own memory.

    Attributes:
        outputs: at return (views of the judge's memory); ``None`` when larger than expected.
        later: the same output objects after a device-wide wait and a delay.
        plan: as the candidate described its outputs; empty when the guard stopped the call.
        devices: device types of the outputs.
        operators: forbidden operators seen by the guard.
        shared: an output lies in an input's memory.
        tampered: the guard was taken off its stack.
    """

    outputs: Any
    later: Any
    plan: Plan
    devices: tuple[str, ...]
    operators: tuple[str, ...]
    shared: bool
    tampered: bool


class Candidate:
    """One candidate in a process of its own.

    Every method may raise WorkerError (its code raised) or WorkerDied (its process ended).

    Attributes:
        settings: PyTorch's settings that its code changed, and its process put back, as it says.
    """

    def __init__(self, config: JudgeConfig, place: Place) -> None:
        self._config = config
        self._place = place
        self._worker = WorkerProcess(
            "candidate_worker.py",
            env=place.worker_env(config),
            label="candidate's process",
            view=View(gpu=place.kind == "cuda"),
        )
        self._slots: dict[str, Block] = {}
        self._settled = False
        self.settings: set[str] = set()

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._worker.is_alive()

    def processor_s(self) -> float:
        """Seconds of processor time that the process and its threads have taken."""
        return self._worker.processor_s()

    def wait_ready(self) -> None:
        """Wait for the process's imports, before any lease is taken."""
        self._worker.wait_ready()

    def settle(self) -> None:
        """Bring torch and the device up; done once, before any candidate code."""
        if not self._settled:
            self._ask("settle", device=self._place.worker_device, num_threads=self._place.num_threads)
            self._settled = True

    def probe(self) -> None:
        """A known-good computation in this process."""
        self._ask("probe", device=self._place.worker_device)

    def import_extension(self, library: Path) -> None:
        """Load the built extension only."""
        self._ask("import", library=str(shutil.copy(library, self._worker.scratch)))

    def load(self, folder: Path, library: Path, *, plan: Plan, block: Block, seed: int) -> float | None:
        """Import the candidate, build ``ModelNew``, load the reference's weights strictly.

        Returns:
            Microseconds of ``prepare()``, or ``None`` where there is none.
        """
        self._share({"state": block})
        inside = self._worker.scratch / "candidate"  # all it sees of the judge's folders
        shutil.copytree(folder, inside)
        library = inside / library.relative_to(folder)
        answer = self._ask("load", folder=str(inside), library=str(library), plan=plan, seed=seed)
        with reading("load"):
            took = answer["prepare_us"]
            return None if took is None else samples_of([took], 1)[0]

    def set_state(self, plan: Plan, block: Block) -> None:
        """Load other parameters and buffers; ``prepare()`` runs again."""
        self._share({"state": block})
        self._ask("set_state", plan=plan)

    def run(self, slot: str, block: Block, plan: Plan, *, room: Plan, hold: str | None = None) -> Produced:
        """Call the candidate once on the inputs in ``block``.

        Args:
            slot: name under which the block is shared; reusing one keeps the address.
            block, plan: inputs, in memory the candidate can write.
            room: plan of the expected outputs, for sizing.
            hold: keep the output objects under this name for :meth:`fetch`.
        """
        self._share({slot: block})
        self._make_room(room["nbytes"])
        answer = self._ask("run", slots=[slot], plans=[plan], hold=hold)
        with reading("run"):
            return self._produced(answer)

    def fetch(self, **which: Any) -> Any:
        """An output held earlier (``hold=NAME`` or ``timed=INDEX``) as it is now; ``None`` if too large."""
        self._poison()
        answer = self._ask("fetch", **which)
        with reading("fetch"):
            too_large = answer["overflow"]
            plan = form_of(answer["plan"])
            return None if too_large else exchange.read(plan, self._slots["out0"], copy=False)

    def time(
        self,
        blocks: Mapping[str, Block],
        plans: Sequence[Plan],
        *,
        order: Sequence[int],
        warmup: int,
        keep_last: int,
    ) -> tuple[list[float], list[int]]:
        """Microseconds of calls as the candidate's process measured them, and the held input sets."""
        self._share(blocks)
        answer = self._ask(
            "time",
            slots=list(blocks),
            plans=list(plans),
            order=list(order),
            warmup=warmup,
            keep_last=keep_last,
        )
        with reading("time"):
            return samples_of(answer["samples"], len(order)), sets_of(answer["held"], len(plans), keep_last)

    def burst(
        self, blocks: Mapping[str, Block], plans: Sequence[Plan], *, num_calls: int, keep_last: int
    ) -> list[int]:
        """Calls back to back on input sets in turn; the input sets of the outputs held (``timed=INDEX``)."""
        self._share(blocks)
        answer = self._ask(
            "burst", slots=list(blocks), plans=list(plans), num_calls=num_calls, keep_last=keep_last
        )
        with reading("burst"):
            return sets_of(answer["held"], len(plans), keep_last)

    def time_one(
        self,
        blocks: Mapping[str, Block],
        plans: Sequence[Plan],
        *,
        flags: Block,
        release: Callable[[], None],
    ) -> float:
        """Microseconds of one call on values that are written while it is busy with older ones.

        The output is kept as ``timed=0``.

        Args:
            blocks: two slots: older values, and where the new ones will be.
            plans: of both.
            flags: two bytes of host memory (``timing.time_released``).
            release: waits for the second, writes the new values, then sets the first.
        """
        self._share({**blocks, "flags": flags})
        self._worker.begin("time_one", slots=list(blocks), plans=list(plans), flags="flags")
        release()
        answer, fds = self._worker.finish("time_one", limit_s=self._config.run_limit_s)
        close_all(fds)
        with reading("time_one"):
            return samples_of([answer["sample"]], 1)[0]

    def kernels(
        self, blocks: Mapping[str, Block], plans: Sequence[Plan], *, num_calls: int
    ) -> tuple[list[float], dict[str, float]]:
        """Kernel times by CUPTI: sums of each call, and total by kernel name, microseconds."""
        self._share(blocks)
        answer = self._ask("kernels", slots=list(blocks), plans=list(plans), num_calls=num_calls)
        with reading("kernels"):
            names = texts_of(list(answer["by_name"]))
            times = samples_of(list(answer["by_name"].values()), len(names))
            by_name = dict(zip(names, times, strict=True))
            return samples_of(answer["samples"], num_calls), by_name

    def make_room(self, nbytes: int) -> None:
        """Output memory for calls whose outputs are fetched later."""
        self._make_room(nbytes)

    def _make_room(self, nbytes: int) -> None:
        current = self._slots.get("out0")
        if current is None or current.nbytes < nbytes:
            new = {name: Block(nbytes, device=self._place.block_device) for name in ("out0", "out1")}
            self._share(new)
        self._poison()

    def _poison(self) -> None:
        for name in ("out0", "out1"):
            if name in self._slots:
                self._slots[name].bytes.fill_(_POISON)
        self._place.synchronize()

    def _produced(self, answer: Mapping[str, Any]) -> Produced:
        if answer["plan"] is None:
            return Produced(None, None, {}, (), texts_of(answer["operators"]), False, False)
        plan, fits = form_of(answer["plan"]), not answer["overflow"]
        return Produced(
            outputs=exchange.read(plan, self._slots["out0"], copy=False) if fits else None,
            later=exchange.read(plan, self._slots["out1"], copy=False) if fits else None,
            plan=plan,
            devices=texts_of(answer["devices"]),
            operators=texts_of(answer["operators"]),
            shared=bool(answer["shared"]),
            tampered=bool(answer["tampered"]),
        )

    def _share(self, blocks: Mapping[str, Block]) -> None:
        new = {name: block for name, block in blocks.items() if self._slots.get(name) is not block}
        if new:
            self._place.synchronize()
            self._worker.map_slots(new, device=self._place.worker_device)
            for name, block in new.items():
                if name in ("out0", "out1") and name in self._slots:
                    self._slots[name].close()
                self._slots[name] = block

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        answer, fds = self._worker.ask(op, limit_s=self._config.run_limit_s, **fields)
        close_all(fds)  # a candidate's process has none to give
        with reading(op):
            self.settings |= set(texts_of(answer.get("settings", []))[:_MOST_SETTINGS])
        return answer

    def close(self) -> None:
        """End the process and release the output memory; may run twice."""
        self._worker.close()
        for name in ("out0", "out1"):
            if name in self._slots:
                self._slots.pop(name).close()
