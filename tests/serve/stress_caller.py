"""One caller of the stress test: twenty candidates through the pool, four at a time, every fifth cancelled.

``python stress_caller.py URL NAME FOLDER`` prints how the answers compare with what they must be.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "judge"))
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import PoolError
from cuda_agent.pool.contract import JobState, JudgeRequest, NoSuchJobError
from cuda_agent.pool.remote import judge_by, open_pool
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=60.0, num_draws=2)


def main(url: str, name: str, folder: Path) -> None:
    pool = open_pool(url)

    def one(number: int) -> str:
        off = 0.5 if number % 5 in (1, 3) else 0.0
        kernel = KERNEL.replace("+ shift[j]", f"+ shift[j] + {off}f") + f"// {name} {number}\n"
        snapshot = freeze(write_candidate(folder / str(number), kernel=kernel))
        request = JudgeRequest(TASK, snapshot, CONFIG, Scope.VERIFY)
        if number % 5 == 4:
            return cancelled(request)
        result = judge_by(pool, request, caller=name)
        if result.infrastructure is not None or result.correct is not (off == 0.0):
            return f"bad: {number} {result.correct} {result.infrastructure} {result.detail}"
        if result.candidate_hash != snapshot.hash:
            return f"bad: {number} got another candidate's verdict"
        return "right" if result.correct else "wrong"

    def cancelled(request: JudgeRequest) -> str:
        job_id = pool.submit(request, caller=name)
        time.sleep(0.3)
        for _ in range(600):
            try:
                job = pool.cancel(job_id)
            except NoSuchJobError:
                return "cancelled"  # a restarted server has forgotten it: nobody judges it
            except PoolError:
                time.sleep(0.1)
                continue
            # One that had ended before keeps its verdict.
            if job.state.ended:
                return "cancelled" if job.state in (JobState.CANCELLED, JobState.DONE) else f"bad: {job}"
            time.sleep(0.1)
        return "bad: never ended"

    with ThreadPoolExecutor(4) as threads:
        answers = Counter(threads.map(one, range(20)))
    bad = [words for words in answers if words.startswith("bad")]
    print(json.dumps({key: answers[key] for key in ("right", "wrong", "cancelled")} | {"bad": bad}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
