"""A real HTTP server over a pool of scripted workers, in this process, on a free port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from candidates import TASK
from scripted_worker import ScriptedWorker

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.pool.contract import JudgeRequest
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.serve.app import make_app
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

TOKEN = "a-token-of-a-test-0123456789"


class Served:
    """A server; ``restart`` forgets every job."""

    QUEUE = 3
    MAX_BODY = 1 << 20

    def __init__(self, folder: Path, *, queue: int = QUEUE) -> None:
        self.folder = folder / "files"
        self.folder.mkdir()
        self.gate = threading.Event()
        self._queue = queue
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Served:
        config = PoolConfig(devices=("cuda:0",), workers=1, queue_limit=self._queue)
        gate = self.gate
        self.pool = LocalPool(config, make_worker=lambda device: ScriptedWorker(device, gate, []))
        app = make_app(self.pool, token=TOKEN, folder=self.folder, max_body_bytes=self.MAX_BODY)
        self._server = uvicorn.Server(
            uvicorn.Config(app, port=self._port, log_level="error", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart(self) -> None:
        """Stop, forget, start again at the same address."""
        self.close()
        self.gate = threading.Event()
        self.__enter__()

    def close(self) -> None:
        """Stop; may run twice."""
        self._server.should_exit = True
        self._thread.join()
        self.pool.close()


def request(
    words: str, *, config: JudgeConfig | None = None, assets: Mapping[str, Path] | None = None
) -> JudgeRequest:
    """What a scripted worker is told to do, as a candidate."""
    task = Task(code=TASK.code, name=TASK.name, assets=assets or {})
    snapshot = Snapshot({"model_new.py": words.encode()})
    return JudgeRequest(task, snapshot, config or JudgeConfig(), Scope.VERIFY)
