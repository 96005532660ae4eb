"""Load a finished result: its kernels built on this machine, under a module that knows when to use them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from cuda_agent.backends import get_backend
from cuda_agent.backends.base import Backend
from cuda_agent.config import Track, cache_dir
from cuda_agent.errors import InfrastructureError, TaskError, ToolchainError, UsageError, WorkspaceError
from cuda_agent.judge.build import LIBRARY, build
from cuda_agent.result import Result
from cuda_agent.runs.run_folder import RunFolder
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import verdict
from cuda_agent.runtime.candidate import NewModule, construct, load_source
from cuda_agent.runtime.guarded import OptimizedModule, Verified
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot, freeze


def load(folder: str | Path, *, allow_unverified: bool = False) -> OptimizedModule:
    """The module of a finished run with its new kernels, in eval mode and on the CPU.

    The reference's code runs here, and the kernels are built from their sources (cached). Weights are
    those the task's constructor makes, or those exported with it: load your own with
    ``load_state_dict``, and move it with ``.to()``.

    Args:
        folder: what ``cuda-agent optimize`` wrote (``--out``).
        allow_unverified: also load a candidate whose verdict is not "correct", or that was changed.

    Raises:
        UsageError: the folder is no run, or its verdict is not "correct".
        TaskError: the reference does not run here.
        ToolchainError: the kernels cannot be built here.
    """
    run = RunFolder.open(Path(folder))
    result = checked_result(run, allow_unverified=allow_unverified)
    task = run.load_task()
    namespace = task_module(task, run.task / "model.py")
    try:
        arguments = namespace.get_init_inputs()
        original = construct(namespace.Model, arguments)
    except Exception as error:  # noqa: BLE001  task code may raise anything
        raise TaskError(f"the reference of {run.root} raised {type(error).__name__}: {error}") from None
    return attach(original.eval(), run, result, arguments=arguments)


def attach(original: nn.Module, run: RunFolder, result: Result, *, arguments: Any) -> OptimizedModule:
    """Put a run's kernels under a module.

    Args:
        original: the module to run where the kernels were not verified.
        run: where the candidate lies.
        result: its verdict.
        arguments: of the constructor of ``ModelNew``, as ``get_init_inputs()`` gives them.

    Raises:
        ToolchainError: the kernels cannot be built here.
    """
    settings = OptimizeSettings.from_dict(run.load_settings())
    backend = get_backend(settings.judge.device, gpu=settings.judge.gpu)
    snapshot = freeze(run.candidate)
    library = build_library(snapshot, backend, track=settings.judge.track)
    # The cache holds the source the library was built from: the run's folder may change or go.
    make = NewModule(library.with_name("model_new.py"), library, arguments)
    return OptimizedModule(original, make, verified_by(result, backend.name))


def verified_by(result: Result, device_type: str) -> Verified:
    """What a verdict covers."""
    return Verified(result.inputs, device_type, result.device if device_type == "cuda" else None)


def checked_result(run: RunFolder, *, allow_unverified: bool) -> Result:
    """The run's verdict.

    Raises:
        UsageError: there is none, it is not "correct", or the candidate was changed since.
    """
    result = run.load_result()
    if result is None:
        raise UsageError(
            f"{run.root} has no verdict", f"Finish it: cuda-agent optimize --resume --out {run.root}"
        )
    remedy = "Optimise it again; cuda_agent.load takes it at your own risk with allow_unverified=True."
    if allow_unverified:
        return result
    if not result.correct:
        raise UsageError(f"the candidate of {run.root} is not verified ({verdict(result)})", remedy)
    try:
        found = freeze(run.candidate).hash
    except WorkspaceError as error:
        raise UsageError(f"{run.root} holds no candidate: {error.cause}", remedy) from None
    if result.candidate_hash is not None and found != result.candidate_hash:
        raise UsageError(f"the candidate of {run.root} was changed after it was judged", remedy)
    return result


def task_module(task: Task, path: Path) -> Any:
    """Run a task's source as a module of its own.

    Raises:
        TaskError: it does not import.
    """
    name = f"_cuda_agent_task_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    try:
        with _on_path(task.search_path):
            return load_source(path, name=name)
    except Exception as error:  # noqa: BLE001  task code may raise anything
        raise TaskError(f"task {task.name} does not import: {type(error).__name__}: {error}") from None


def build_library(snapshot: Snapshot, backend: Backend, *, track: Track, limit_s: float = 600.0) -> Path:
    """Build a candidate's extension, or take it from the cache; its sources lie beside it.

    Raises:
        ToolchainError: it does not build here.
        InfrastructureError: the cache cannot be written.
    """
    home = cache_dir() / "loaded" / f"{snapshot.hash}-{backend.name}-{track}-{backend.fingerprint()}"
    if (home / LIBRARY).is_file():
        return home / LIBRARY
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=home.parent))
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {home.parent}: {error.strerror}", "Set CUDA_AGENT_CACHE."
        ) from None
    try:
        outcome = build(snapshot, backend, track=track, folder=part, limit_s=limit_s)
        if not outcome.ok:
            first = next(iter(outcome.message.splitlines()), "no message")
            raise ToolchainError(
                f"the kernels do not build on this machine: {first}", "See cuda-agent doctor."
            )
        try:
            os.rename(part, home)  # noqa: PTH104 (fails where another process was first)
        except OSError:
            if not (home / LIBRARY).is_file():
                raise
        return home / LIBRARY
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _on_path(folders: Sequence[str]) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = before
