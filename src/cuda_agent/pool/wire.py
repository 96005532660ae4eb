"""Requests, jobs and errors as JSON: the one form for worker processes and for HTTP.

What arrives is checked here: names of files, sizes, unknown keys. Never executed, never unpickled.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.errors import (
    CudaAgentError,
    InfrastructureError,
    PoolError,
    TaskError,
    ToolchainError,
    UsageError,
    WorkspaceError,
)
from cuda_agent.pool.contract import DeviceMetrics, Job, JobState, JudgeRequest, PoolMetrics
from cuda_agent.result import Result
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_TOTAL_BYTES,
    MODEL_FILE,
    Snapshot,
    checked_name,
)

MAX_CODE_BYTES = 2 << 20
MAX_ASSET_BYTES = 64 << 20
MAX_ASSETS = 16
_ASSET_NAME = re.compile(r"weights[A-Za-z0-9_.-]{0,64}\.pt")
_ERRORS: dict[str, type[CudaAgentError]] = {
    kind.__name__: kind
    for kind in (UsageError, TaskError, WorkspaceError, ToolchainError, InfrastructureError, PoolError)
}


def request_to_dict(request: JudgeRequest, *, search_path: bool = False) -> dict[str, Any]:
    """Plain JSON types; bytes in base64. ``search_path`` only between processes of one machine.

    Raises:
        UsageError: a file of the task cannot be read.
    """
    task = request.task
    try:
        assets = {name: _encoded(path.read_bytes()) for name, path in task.assets.items()}
    except OSError as error:
        raise UsageError(f"cannot read a file of task {task.name}: {error}", "Restore it.") from None
    return {
        "task": {
            "code": task.code,
            "name": task.name,
            "assets": assets,
            **({"search_path": list(task.search_path)} if search_path else {}),
        },
        "files": {name: _encoded(content) for name, content in request.snapshot.files.items()},
        "config": dataclasses.asdict(request.config),
        "scope": str(request.scope),
        "task_given": request.task_given,
    }


def request_from_dict(data: Mapping[str, Any], *, folder: Path) -> JudgeRequest:
    """Inverse of :func:`request_to_dict`.

    The task's files are written into ``folder``, which is removed when nobody holds the task any more.

    Raises:
        UsageError: a name, a size or a value is refused.
        TaskError: see :meth:`cuda_agent.task.Task.check_names`.
        InfrastructureError: the folder cannot be written.
    """
    try:
        task = data["task"]
        request = JudgeRequest(
            task=_task(task, folder),
            snapshot=_snapshot(data["files"]),
            config=JudgeConfig(**data.get("config", {})),
            scope=Scope(data.get("scope", Scope.FULL)),
            task_given=bool(data.get("task_given", True)),
        )
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise UsageError(f"the request does not fit: {error}", "See docs/serving.md.") from None
    except WorkspaceError as error:
        raise UsageError(error.cause, error.remedy) from None
    request.task.check_names()
    return request


def job_from_dict(data: Mapping[str, Any]) -> Job:
    """Inverse of :func:`cuda_agent.pool.contract.plain` for a job.

    Raises:
        PoolError: the answer is no job.
    """
    try:
        values = dict(data)
        values["state"] = JobState(values["state"])
        values["lines"] = tuple(values["lines"])
        values["result"] = Result.from_dict(values["result"]) if values["result"] else None
        return Job(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise PoolError(f"the pool's answer is no job: {error}", "Is it a server of this version?") from None


def metrics_from_dict(data: Mapping[str, Any]) -> PoolMetrics:
    """Inverse of :func:`cuda_agent.pool.contract.plain` for metrics.

    Raises:
        PoolError: the answer is no set of metrics.
    """
    try:
        devices = tuple(DeviceMetrics(**device) for device in data["devices"])
        return PoolMetrics(**{**data, "devices": devices})
    except (KeyError, TypeError) as error:
        raise PoolError(
            f"the pool's answer is no metrics: {error}", "Is it a server of this version?"
        ) from None


def error_to_dict(error: CudaAgentError) -> dict[str, str]:
    """The kind (nearest class that travels), cause and remedy of an error."""
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _ERRORS), "InfrastructureError")
    return {"kind": kind, "cause": error.cause, "remedy": error.remedy}


def error_from_dict(data: Mapping[str, str]) -> CudaAgentError:
    """The error as it was raised on the other side."""
    kind = _ERRORS.get(str(data.get("kind")), InfrastructureError)
    return kind(str(data.get("cause", "unknown")), str(data.get("remedy", "")))


def line_of(message: Mapping[str, Any]) -> bytes:
    """One message between processes: a line of JSON."""
    return json.dumps(message).encode() + b"\n"


def _task(data: Mapping[str, Any], folder: Path) -> Task:
    assets = _assets(data.get("assets", {}), folder)
    task = Task(
        code=_text(data["code"]),
        name=str(data.get("name", "task"))[:200],
        assets=assets,
        search_path=tuple(data.get("search_path", ())),
    )
    if assets:
        weakref.finalize(task, shutil.rmtree, folder, ignore_errors=True)
    return task


def _snapshot(files: Mapping[str, str]) -> Snapshot:
    if MODEL_FILE not in files or len(files) > MAX_FILES:
        raise UsageError(f"a candidate has {MODEL_FILE} and at most {MAX_FILES} files in all")
    contents = {}
    for name, text in files.items():
        if "\0" in name or len(name) > 512 or checked_name(name).as_posix() != name:
            raise UsageError(
                f"{name[:80]!r} is no file of a candidate", "Only model_new.py and kernels/ are."
            )
        contents[name] = _decoded(text, MAX_FILE_BYTES)
    if sum(map(len, contents.values())) > MAX_TOTAL_BYTES:
        raise UsageError(f"the candidate has more than {MAX_TOTAL_BYTES >> 20} MiB")
    return Snapshot(contents)


def _assets(assets: Mapping[str, str], folder: Path) -> dict[str, Path]:
    if len(assets) > MAX_ASSETS:
        raise UsageError(f"a task has at most {MAX_ASSETS} files")
    paths = {}
    for name, text in assets.items():
        if not _ASSET_NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is no file of a task", "Only weights*.pt are.")
        content = _decoded(text, MAX_ASSET_BYTES)
        paths[name] = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths[name].write_bytes(content)
        except OSError as error:
            raise InfrastructureError(f"cannot keep a task's file: {error.strerror}", "Free space.") from None
    return paths


def _text(code: Any) -> str:
    # Checked as bytes: what cannot be encoded (lone surrogates) raises ValueError.
    if not isinstance(code, str) or len(code.encode()) > MAX_CODE_BYTES:
        raise UsageError(f"a task's code is text of at most {MAX_CODE_BYTES >> 20} MiB")
    return code


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(text: str, limit: int) -> bytes:
    if len(text) > limit * 4 // 3 + 4:
        raise UsageError(f"a file is larger than {limit >> 20} MiB")
    content = base64.b64decode(text, validate=True)
    if len(content) > limit:
        raise UsageError(f"a file is larger than {limit >> 20} MiB")
    return content
