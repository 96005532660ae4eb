"""Many mixed candidates, several callers at once: every verdict as expected, nothing left behind.

    python benchmarks/soak.py --num 2000 --callers 4 --out soak.json

Honest, wrong, cheating and faulting candidates are judged (public checks) in random order by judges side by
side. Processes, scratch folders, shared memory, control groups, descriptors and GPU memory are listed before
and after. Exits with 1 when a verdict is not as expected or something is left. CPU candidates only: their
kernels are C++.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "judge"))
from candidates import FORWARD, KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Fault, Result
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, run_limit_s=15.0)
MARK = f"cuda-agent-soak-{os.getpid()}"
_START = "                           long rows, long width) {\n"


@dataclass(frozen=True)
class Kind:
    """One kind of candidate: how it differs from the honest one, and whether a verdict on it is right."""

    name: str
    expected: Callable[[Result], bool]
    kernel: str = KERNEL
    forward: str = FORWARD
    imports: str = ""


@dataclass
class Tally:
    """What a soak found; ``left`` names what was not there before."""

    num: int = 0
    seconds: float = 0.0
    by_kind: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
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


KINDS = (
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


def soak(num: int, *, callers: int, seed: int = 0) -> Tally:
    """Judge ``num`` candidates, dealt to ``callers`` judges that work at once."""
    os.environ["CUDA_AGENT_TEST_MARK"] = MARK
    order = [KINDS[index % len(KINDS)] for index in range(num)]
    random.Random(seed).shuffle(order)
    tally, lock = Tally(), threading.Lock()
    with JudgeSession(TASK, CONFIG):  # whatever is made once is made before the first listing
        pass
    before, start = _listing(), time.monotonic()
    threads = [
        threading.Thread(target=_caller, args=(order[index::callers], tally, lock))
        for index in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.seconds = time.monotonic() - start
    tally.left = _left_since(before)
    return tally


def _caller(kinds: list[Kind], tally: Tally, lock: threading.Lock) -> None:
    with JudgeSession(TASK, CONFIG) as session, tempfile.TemporaryDirectory(prefix="soak-") as root:
        for number, kind in enumerate(kinds):
            folder = write_candidate(
                Path(root) / str(number), kernel=kind.kernel, forward=kind.forward, imports=kind.imports
            )
            result = session.judge(freeze(folder), Scope.VERIFY)
            with lock:
                tally.num += 1
                tally.by_kind[kind.name] = tally.by_kind.get(kind.name, 0) + 1
                if not kind.expected(result):
                    tally.unexpected.append(f"{kind.name}: {result.to_json()}")


def _listing() -> dict[str, set[str]]:
    """What a judge may leave, by kind."""
    groups = [path for path in Path("/sys/fs/cgroup").glob("**/cuda-agent-*") if _is_orphan(path)]
    return {
        "processes": _marked(),
        "temporary files": {str(path) for path in Path(tempfile.gettempdir()).iterdir()},
        "shared memory": {path.name for path in Path("/dev/shm").iterdir()},
        "control groups": {str(path) for path in groups},
        "descriptors": {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
        - {f"/proc/{os.getpid()}/fd"},
        "GPU memory": _gpu_processes(),
    }


def _left_since(before: dict[str, set[str]], patience_s: float = 5.0) -> dict[str, list[str]]:
    deadline = time.monotonic() + patience_s
    while True:
        left = {name: sorted(found - before[name]) for name, found in _listing().items()}
        if not any(left.values()) or time.monotonic() > deadline:
            return {name: found for name, found in left.items() if found}
        time.sleep(0.1)


def _is_orphan(group: Path) -> bool:
    """Its launcher is dead: others' judges may run beside us."""
    return not Path(f"/proc/{group.name.rpartition('-')[2]}").exists()


def _marked() -> set[str]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and MARK.encode() in (folder / "environ").read_bytes():
                found.add((folder / "cmdline").read_text().replace("\0", " ")[-80:])
        except OSError:
            continue
    return found


def _gpu_processes() -> set[str]:
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return set()
    return set(done.stdout.split("\n")) - {""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=2000, help="candidates in all")
    parser.add_argument("--callers", type=int, default=4, help="judges at once")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--out", type=Path, help="write the tally here as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as tempfile.tempdir:  # all of ours, and nobody else's
        tally = soak(options.num, callers=options.callers, seed=options.seed)
    text = json.dumps({**asdict(tally), "clean": tally.is_clean()}, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if tally.is_clean() else 1


if __name__ == "__main__":
    sys.exit(main())
