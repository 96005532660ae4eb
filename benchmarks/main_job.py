"""The main job on every module of ``modules.py``: optimise, judge, write times and verdicts as JSON.

    python benchmarks/main_job.py --device cuda --repeats 3 --out results.json

Each repeat is a whole run of ``cuda-agent optimize`` (playbook policy) in a process of its own and a new
folder; after it, the same candidate is loaded and compared with eager on fresh inputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(modules.NAMES))
    parser.add_argument("--time-limit", type=float, default=None, help="seconds for the whole benchmark")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    start = time.monotonic()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as root:
        for repeat in range(options.repeats):
            for name in options.only:
                if options.time_limit and time.monotonic() - start > options.time_limit:
                    print(f"time limit: {name} repeat {repeat} not run", flush=True)
                    continue
                rows.append(run_one(name, options.device, Path(root) / f"{name}-{repeat}"))
                print(line(rows[-1]), flush=True)
                document = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "argv": sys.argv[1:]}
                options.out.write_text(json.dumps({**document, "rows": rows}, indent=1))
    return 0


def run_one(name: str, device: str, folder: Path) -> dict[str, object]:
    """One whole run; the row that goes into the JSON."""
    folder.mkdir()
    task = folder / f"{name}.py"
    task.write_text(modules.source(name, device))
    out = folder / "out"
    argv = [sys.executable, "-m", "cuda_agent", "optimize", str(task), "--device", device, "--out", str(out)]
    begin = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    row: dict[str, object] = {"module": name, "exit": done.returncode, "seconds": seconds}
    path = out / "result.json"
    if not path.is_file():
        return {**row, "stderr": done.stderr[-1500:]}
    result = json.loads(path.read_text())
    for key in ("candidate_us", "eager_us", "compile_us", "kernel_us", "wall_us"):
        if result[key]:
            result[key]["samples"] = len(result[key]["samples"])
    row["result"] = result
    if result["correct"]:
        check = subprocess.run(
            [sys.executable, "-c", _CHECK, str(out), str(task), device],
            capture_output=True,
            text=True,
            check=False,
        )
        row["loaded_max_abs_difference"] = (
            json.loads(check.stdout.splitlines()[-1]) if check.returncode == 0 else check.stderr[-800:]
        )
    return row


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
