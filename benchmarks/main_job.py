"""The main job on every module of ``modules.py``: optimise, judge, write times and verdicts as JSON.

    python benchmarks/main_job.py --device cuda --repeats 3 --out results.json

Each module is a whole run of ``cuda-agent optimize`` (playbook policy) in a process of its own, ``--jobs`` at
once. Then, one module at a time on a machine that does nothing else, the final candidate is judged
``--repeats`` times more on fresh draws, each time in a process of its own, and the loaded result is compared
with eager on fresh inputs. Runs that lie finished under ``--keep`` are not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import modules

_CHECK = """
import json, sys, torch, cuda_agent
from importlib import util
spec = util.spec_from_file_location("model", sys.argv[2]); m = util.module_from_spec(spec)
sys.modules["model"] = m; spec.loader.exec_module(m)
torch.manual_seed(20261201)
device = sys.argv[3]
model = m.Model(*m.get_init_inputs()).eval().to(device)
inputs = [x.to(device) for x in m.get_inputs()]
loaded = cuda_agent.load(sys.argv[1])
loaded.load_state_dict(model.state_dict()); loaded = loaded.to(device).eval()
with torch.no_grad():
    want, got = model(*inputs), loaded(*inputs)
flat = lambda y: list(y) if isinstance(y, (tuple, list)) else [y]
print(json.dumps(max(float((a.double() - b.double()).abs().max()) for a, b in zip(flat(want), flat(got)))))
"""

_REPEAT = """
import sys
from pathlib import Path
from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.task import load_task
from cuda_agent.workspace.snapshot import freeze
config = JudgeConfig(device=sys.argv[3], timing_budget_s=2.0)
with JudgeSession(load_task(Path(sys.argv[1])), config) as session:
    for _ in range(int(sys.argv[4])):
        print(session.judge(freeze(Path(sys.argv[2])), Scope.FULL).to_json(), flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--repeats", type=int, default=2, help="further verdicts on each final candidate")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; the device's lease orders them")
    parser.add_argument("--only", nargs="*", default=list(modules.NAMES))
    parser.add_argument("--keep", type=Path, help="keep the runs' folders here")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = options.keep or Path(root)
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = {name: pool.submit(run_one, name, options.device, folder / name) for name in options.only}
            rows = {name: run.result() for name, run in runs.items()}
        write(options.out, rows)
        for name, row in rows.items():
            again(row, options.device, folder / name, options.repeats)
            print(line(row), flush=True)
            write(options.out, rows)
    return 0


def write(path: Path, rows: dict[str, dict[str, object]]) -> None:
    document = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "argv": sys.argv[1:]}
    path.write_text(json.dumps({**document, "rows": list(rows.values())}, indent=1))


def run_one(name: str, device: str, folder: Path) -> dict[str, object]:
    """One whole run; the row that goes into the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    task, out, row_file = folder / f"{name}.py", folder / "out", folder / "row.json"
    if row_file.is_file():
        return json.loads(row_file.read_text())  # type: ignore[no-any-return]
    task.write_text(modules.source(name, device))
    argv = [sys.executable, "-m", "cuda_agent", "optimize", str(task), "--device", device, "--out", str(out)]
    begin = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    row: dict[str, object] = {"module": name, "exit": done.returncode, "seconds": time.monotonic() - begin}
    path = out / "result.json"
    row |= (
        {"result": short(json.loads(path.read_text()))} if path.is_file() else {"stderr": done.stderr[-1500:]}
    )
    row_file.write_text(json.dumps(row))
    return row


def again(row: dict[str, object], device: str, folder: Path, repeats: int) -> None:
    """Repeats the verdict and tries the loaded result; adds both to the row."""
    result = row.get("result")
    if not isinstance(result, dict) or not result["correct"]:
        return
    task, out = folder / f"{row['module']}.py", folder / "out"
    row["repeats"] = repeated(
        [sys.executable, "-c", _REPEAT, str(task), str(out / "candidate"), device, str(repeats)]
    )
    check = [sys.executable, "-c", _CHECK, str(out), str(task), device]
    loaded = subprocess.run(check, capture_output=True, text=True, check=False)
    row["loaded_max_abs_difference"] = (
        json.loads(loaded.stdout.splitlines()[-1]) if loaded.returncode == 0 else loaded.stderr[-800:]
    )


def repeated(argv: list[str]) -> object:
    """Further verdicts on the final candidate, each on a candidate process of its own."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"exit": done.returncode, "stderr": done.stderr[-500:]}
    return [short(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def short(result: dict[str, object]) -> dict[str, object]:
    """The result with the number of samples in place of the samples."""
    for value in result.values():
        if isinstance(value, dict) and "samples" in value:
            value["samples"] = len(value["samples"])
    return result


def line(row: dict[str, object]) -> str:
    """One row for people."""
    result = row.get("result")
    if not isinstance(result, dict):
        return f"{row['module']:20} exit {row['exit']}: {str(row.get('stderr'))[-300:]}"

    def median(key: str) -> str:
        return f"{result[key]['median']:9.1f}" if result[key] else "        -"

    times = " ".join(f"{key[:-3]} {median(key)}" for key in ("eager_us", "compile_us", "candidate_us"))
    return (
        f"{row['module']:20} {result['stage']:8} correct={result['correct']} reward={result['reward']} "
        f"{times} us, {row['seconds']:.0f} s, loaded differs by {row.get('loaded_max_abs_difference')} "
        f"{result['detail'][:200]}"
    )


if __name__ == "__main__":
    sys.exit(main())
