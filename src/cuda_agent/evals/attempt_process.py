"""One attempt in a process of its own: ``python -m cuda_agent.evals.attempt_process EVAL ID SAMPLE``.

A crash costs this attempt only. It dies with the process that started it, so that a killed evaluation
leaves nobody at work in its folder; its own sandboxes die with it in the same way.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cuda_agent.config import Scope
from cuda_agent.errors import CudaAgentError
from cuda_agent.evals.attempt import attempt_file, run_attempt
from cuda_agent.evals.run_files import EvalFolder, attempt_line
from cuda_agent.result import Result
from cuda_agent.runs.run_folder import write_text
from cuda_agent.trajectory import Turn

if TYPE_CHECKING:
    from cuda_agent.workspace.snapshot import Snapshot

EXIT_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1


class Log:
    """Writes what happens to stderr, which is the attempt's log file."""

    def say(self, text: str) -> None:
        """See :class:`cuda_agent.runs.reporting.Reporter`."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def turn(self, turn: Turn) -> None:
        """See :class:`cuda_agent.runs.reporting.Reporter`."""
        calls = ", ".join(call.name for call in turn.calls) or "no call"
        self.say(f"turn {turn.index + 1}: {calls} ({turn.seconds:.1f} s)")

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """See :class:`cuda_agent.runs.reporting.Reporter`."""
        time_us = f", {result.candidate_us.median:.1f} us" if result.candidate_us else ""
        self.say(f"  {scope} {snapshot.hash}: correct {result.correct}{time_us}")


def main(argv: Sequence[str]) -> int:
    """Make the attempt; 0 when its line is on disk, 130 when it was interrupted."""
    _die_with_parent()
    signal.signal(signal.SIGTERM, _interrupt)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    root, key, sample = Path(argv[0]), argv[1], int(argv[2])
    try:
        folder = EvalFolder.open(root)
        target = attempt_file(folder, key, sample)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a process of a killed evaluation may be on its way out
            line = run_attempt(folder, key, sample, reporter=Log())
            if line is None:
                return EXIT_INTERRUPTED
            write_text(target, json.dumps(attempt_line(line), allow_nan=False) + "\n")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CudaAgentError as error:
        print(f"cuda-agent: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("the evaluation is gone")


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
