"""A worker that needs no compiler: the pool's protocol, and a device that falls off when told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cuda_agent.errors import InfrastructureError, TaskError
from cuda_agent.pool.contract import JudgeRequest
from cuda_agent.pool.worker_process import Reply
from cuda_agent.result import Result, Stage

LOST = "cuda:0 is out of use since fresh workers cannot use it"


class ScriptedWorker:
    """Does what a candidate's model_new.py says: ``ok``, ``wait``, ``task``, ``die`` or ``fall``."""

    def __init__(self, device: str, gate: threading.Event, log: list[tuple[str, str]]) -> None:
        self.device, self._gate, self._log = device, gate, log

    def judge(
        self, job: str, request: JudgeRequest, *, say: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Reply:
        word, _, name = request.snapshot.files["model_new.py"].decode().partition(" ")
        self._log.append((self.device, name))
        say(f"judging {name} on {self.device}")
        while word == "wait" and not self._gate.is_set():
            if cancelled():
                return Reply(cancelled=True)
            time.sleep(0.005)
        if word == "die":
            raise InfrastructureError("a judge's process ended unasked (signal 9)")
        if word == "task":
            return Reply(error=TaskError("the reference is random", "Mend it."))
        if word == "fall" and self.device == "cuda:0":
            lost = Result(stage=Stage.BUILD, infrastructure=LOST)
            return Reply(result=lost, out_of_use=LOST)
        return Reply(result=Result(stage=Stage.DONE, correct=True, detail=name), warm=(request.task.hash,))

    def close(self) -> None:
        self._gate.set()
