"""The server's life: start, drain on the first signal, stop."""

from __future__ import annotations

import logging
import threading
from types import FrameType

import uvicorn

from cuda_agent.errors import UsageError
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.sandbox.scratch import Scratch
from cuda_agent.serve.app import make_app

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Drains before it stops: running jobs end and are fetched, none is started. A second signal stops."""

    def __init__(self, config: uvicorn.Config, pool: LocalPool, drain_s: float) -> None:
        super().__init__(config)
        self._pool, self._drain_s, self._draining = pool, drain_s, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  (uvicorn's names)
        """Called in a signal handler."""
        if self._draining:
            self.should_exit = True
            return
        self._draining = True
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        _log.warning("shutting down: running jobs get %g s (a second signal stops at once)", self._drain_s)
        self._pool.drain(self._drain_s)
        self.should_exit = True


def serve(config: PoolConfig, *, token: str, host: str, port: int, drain_s: float) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        UsageError: the address cannot be bound.
    """
    with Scratch() as folder, LocalPool(config) as pool:
        app = make_app(pool, token=token, folder=folder)
        server = _Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3,
            ),
            pool,
            drain_s,
        )
        try:
            server.run()
        except SystemExit:
            raise UsageError(f"cannot listen on {host}:{port}", "Name a free --port.") from None
