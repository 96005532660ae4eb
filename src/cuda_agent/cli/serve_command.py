"""``cuda-agent serve``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.errors import ToolchainError


def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File that holds the token; else CUDA_AGENT_POOL_TOKEN or CUDA_AGENT_POOL_TOKEN_FILE."
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="cpu or cuda:N; repeat it for more. Every GPU, else the CPU, if left out."),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Judges for each device; 0: by the machine.")] = 0,
    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait.")] = 256,
    caller_queue: Annotated[int, typer.Option(min=1, help="Jobs of one caller that may wait.")] = 128,
    sessions: Annotated[int, typer.Option(min=1, help="Tasks that each judge keeps warm.")] = 3,
    memory: Annotated[int, typer.Option(min=1, help="GiB above which a judge lets older tasks go.")] = 16,
    keep: Annotated[int, typer.Option(min=1, help="Results kept.")] = 1000,
    keep_minutes: Annotated[float, typer.Option(min=0.1, help="How long they are kept.")] = 60.0,
    drain: Annotated[float, typer.Option(min=0.0, help="Seconds that running jobs get at shut-down.")] = 60.0,
) -> None:
    """Judge for others over HTTP: judge, optimize and eval with --pool URL."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ToolchainError(
            f"{error.name} is not installed", "Install it: pip install 'cuda-agent[serve]'."
        ) from None
    from cuda_agent.pool.client import read_token
    from cuda_agent.pool.local import PoolConfig, default_devices
    from cuda_agent.pool.worker_process import WorkerLimits
    from cuda_agent.serve.server import serve as run

    token = read_token(token_file)
    config = PoolConfig(
        devices=tuple(device) if device else default_devices(),
        workers=workers,
        queue_limit=queue,
        caller_limit=caller_queue,
        keep=keep,
        keep_s=keep_minutes * 60,
        worker=WorkerLimits(sessions=sessions, memory_bytes=memory << 30),
    )
    print(
        f"cuda-agent: serving {', '.join(config.devices)} at http://{host}:{port}",
        file=sys.stderr,
        flush=True,
    )
    run(config, token=token, host=host, port=port, drain_s=drain)
