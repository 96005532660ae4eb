"""Many mixed candidates, several callers at once: every verdict as expected, nothing left behind.

    python benchmarks/soak.py --num 2000 --callers 4 --out soak.json
    python benchmarks/soak.py --device cuda --seconds 120 --callers 3

Honest, wrong, cheating and faulting candidates are judged (public checks) in random order by judges side by
side, until the number is reached or the seconds are over. Processes, scratch folders, shared memory, control
groups, descriptors and GPU memory are listed before and after. Exits with 1 when a verdict is not as expected
or something is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "judge"))
import cuda_candidates
import torch
from candidates import FORWARD, KERNEL, TASK, write_candidate
from cuda_candidates import DEVICE_FAULTS, first_on_host

from cuda_agent.backends.cuda import list_gpus
from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.nvml import Gpu, NvmlError
from cuda_agent.result import Fault, Result
from cuda_agent.workspace.snapshot import Snapshot, freeze

MARK = f"cuda-agent-soak-{os.getpid()}"
_START = "                           long rows, long width) {\n"
# The judge's own context grows by the kernels that it loads when first used.
_CONTEXT_MIB = 256


@dataclass(frozen=True)
class Kind:
    """One kind of candidate: how it differs from the honest one, and whether a verdict on it is right."""

    name: str
    expected: Callable[[Result], bool]
    kernel: str = KERNEL
    forward: str = FORWARD
    imports: str = ""

    def frozen(self, folder: Path) -> Snapshot:
        """Its files."""
        if "<<<" in self.kernel:
            return cuda_candidates.candidate(kernel=self.kernel, forward=self.forward, imports=self.imports)
        return freeze(write_candidate(folder, kernel=self.kernel, forward=self.forward, imports=self.imports))


@dataclass
class Tally:
    """What a soak found; ``left`` names what was not there before."""

    device: str = ""
    callers: int = 0
    num: int = 0
    seconds: float = 0.0
    by_kind: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    gpu_used_mib: list[int] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)

    def is_clean(self) -> bool:
        """Every verdict as expected, and nothing left."""
        return not self.unexpected and not any(self.left.values())


def _first(statement: str) -> str:
    return KERNEL.replace(_START, _START + statement)


def _honest(result: Result) -> bool:
    return result.correct is True and result.violations == ()


def _wrong(result: Result) -> bool:
    return result.correct is False and result.violations == () and result.fault is None


def _cheat(result: Result) -> bool:
    return result.correct is False and result.violations != ()


def _faulty(fault: Fault) -> Callable[[Result], bool]:
    return lambda result: result.correct is False and result.fault is fault


CPU_KINDS = (
    Kind("honest", _honest),
    Kind(
        "honest, by rows",
        _honest,
        kernel=KERNEL.replace("long i = 0; i < rows; ++i", "long i = rows; i-- > 0;"),
    ),
    Kind("wrong value", _wrong, kernel=KERNEL.replace("+ shift[j]", "+ shift[j] + 0.5f")),
    Kind(
        "weights ignored", _wrong, kernel=KERNEL.replace("* scale[j]", "").replace("+ shift[j]", "+ 0.125f")
    ),
    Kind("does not build", _wrong, kernel=KERNEL.replace("const float v", "const flaot v")),
    Kind("operator in forward", _cheat, forward="return torch.relu(x * self.scale) + self.shift"),
    Kind("rebinds torch", _cheat, imports="torch.allclose = lambda *a, **k: True"),
    Kind("exits", _faulty(Fault.CRASH), forward="raise SystemExit(0)"),
    Kind("segfault", _faulty(Fault.CRASH), kernel=_first("*(volatile int*)8 = 1;\n")),
    Kind("trap", _faulty(Fault.CRASH), kernel=_first("__builtin_trap();\n")),
)


def _on_cuda(kind: Kind) -> Kind:
    """A kind that lies in Python alone, with the kernel for a GPU."""
    return Kind(kind.name, kind.expected, cuda_candidates.KERNEL, kind.forward, kind.imports)


_PLAIN = cuda_candidates.KERNEL
CUDA_KINDS = (
    *(_on_cuda(kind) for kind in CPU_KINDS if kind.kernel == KERNEL),
    Kind("persistent blocks", _honest, _PLAIN.replace("132 * 16", "132")),
    Kind("wrong value", _wrong, _PLAIN.replace("+ t.x", "+ t.x + 0.5f")),
    Kind("weights ignored", _wrong, _PLAIN.replace("v.x * s.x", "v.x").replace("+ t.x", "+ 0.125f")),
    Kind("does not build", _wrong, _PLAIN.replace("float4 v =", "flaot4 v =")),
    Kind("segfault on the host", _faulty(Fault.CRASH), first_on_host("*(volatile int*)8 = 1;")),
    Kind("illegal access", _faulty(Fault.ILLEGAL_ACCESS), DEVICE_FAULTS["illegal"]),
    Kind("misaligned access", _faulty(Fault.ILLEGAL_ACCESS), DEVICE_FAULTS["misaligned"]),
    Kind("device assert", _faulty(Fault.CRASH), DEVICE_FAULTS["assert"]),
)


class Soak:
    """Judges side by side on one device, and what is there before and after."""

    def __init__(self, device: Device) -> None:
        self._config = JudgeConfig(device=device, run_limit_s=15.0)
        self._kinds = CUDA_KINDS if device is Device.CUDA else CPU_KINDS
        self.tally = Tally(device=str(device))
        self._lock = threading.Lock()
        self._deadline = float("inf")

    def run(self, num: int, *, callers: int, seconds: float | None = None, seed: int = 0) -> Tally:
        """Judge up to ``num`` candidates, dealt to ``callers`` judges that work at once, for ``seconds``."""
        os.environ["CUDA_AGENT_TEST_MARK"] = MARK
        tally = self.tally
        tally.callers = callers
        order = [self._kinds[index % len(self._kinds)] for index in range(num)]
        random.Random(seed).shuffle(order)
        self._caller([self._kinds[0]])  # whatever is made once is made before the first listing
        tally.num, tally.by_kind = 0, {}
        before, start = _listing(), time.monotonic()
        tally.gpu_used_mib = [_gpu_used_mib()]
        self._deadline = start + seconds if seconds is not None else self._deadline
        threads = [
            threading.Thread(target=self._caller, args=(order[index::callers],)) for index in range(callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tally.seconds = time.monotonic() - start
        self._compare(before)
        return tally

    def _caller(self, kinds: list[Kind]) -> None:
        with (
            JudgeSession(TASK, self._config) as session,
            tempfile.TemporaryDirectory(prefix="soak-") as root,
        ):
            for number, kind in enumerate(kinds):
                if time.monotonic() > self._deadline:
                    return
                result = session.judge(kind.frozen(Path(root) / str(number)), Scope.VERIFY)
                self._count(kind, result)

    def _count(self, kind: Kind, result: Result) -> None:
        tally = self.tally
        with self._lock:
            tally.num += 1
            tally.by_kind[kind.name] = tally.by_kind.get(kind.name, 0) + 1
            if not kind.expected(result):
                tally.unexpected.append(f"{kind.name}: {result.to_json()}")

    def _compare(self, before: dict[str, Counter[str]], patience_s: float = 5.0) -> None:
        """What is left; processes that were just killed get a little time."""
        tally, deadline = self.tally, time.monotonic() + patience_s
        while True:
            after = _listing()
            left = {name: sorted((found - before[name]).elements()) for name, found in after.items()}
            grown = _gpu_used_mib() - tally.gpu_used_mib[0]
            if grown > _CONTEXT_MIB:
                left["GPU memory"] = [f"{grown} MiB"]
            if not any(left.values()) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        tally.gpu_used_mib.append(tally.gpu_used_mib[0] + grown)
        tally.before = {name: found.total() for name, found in before.items()}
        tally.after = {name: found.total() for name, found in after.items()}
        tally.left = {name: found for name, found in left.items() if found}


def _listing() -> dict[str, Counter[str]]:
    """What a judge may leave, by kind, with how many of each."""
    groups = [path for path in Path("/sys/fs/cgroup").glob("**/cuda-agent-*") if _is_orphan(path)]
    return {
        "processes": Counter(_marked()),
        "temporary files": Counter(str(path) for path in Path(tempfile.gettempdir()).iterdir()),
        "shared memory": Counter(path.name for path in Path("/dev/shm").iterdir()),
        "control groups": Counter(str(path) for path in groups),
        "descriptors": Counter(_descriptors()),
        "processes on the GPU": Counter(_gpu_processes()),
    }


def _descriptors() -> list[str]:
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    names = [re.sub(r"\[\d+\]", "", str(path.readlink())) for path in links]
    return [name for name in names if name != f"/proc/{os.getpid()}/fd"]


def _is_orphan(group: Path) -> bool:
    """Its launcher is dead: others' judges may run beside us."""
    return not Path(f"/proc/{group.name.rpartition('-')[2]}").exists()


def _marked() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and MARK.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " ")[-80:])
        except OSError:
            continue
    return found


def _gpu_processes() -> list[str]:
    """Process ids that hold a context, as NVML gives them; empty without a GPU."""
    if not list_gpus():
        return []
    try:
        gpu = Gpu(list_gpus()[0]["uuid"])
    except NvmlError:
        return []
    try:
        return [str(pid) for pid in gpu.compute_processes()]
    finally:
        gpu.close()


def _gpu_used_mib() -> int:
    """Memory of the GPU in use, by whomever; 0 without one."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=Device, choices=[Device.CPU, Device.CUDA], default=Device.CPU)
    parser.add_argument("--num", type=int, default=2000, help="candidates in all")
    parser.add_argument(
        "--seconds", type=float, help="start no candidate after so long; num says how far it came"
    )
    parser.add_argument("--callers", type=int, default=4, help="judges at once")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--out", type=Path, help="write the tally here as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as tempfile.tempdir:  # all of ours, and nobody else's
        tally = Soak(options.device).run(
            options.num, callers=options.callers, seconds=options.seconds, seed=options.seed
        )
    text = json.dumps({**asdict(tally), "clean": tally.is_clean()}, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if tally.is_clean() else 1


if __name__ == "__main__":
    sys.exit(main())
