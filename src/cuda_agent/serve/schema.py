"""Bodies of the HTTP interface, as pydantic models: the OpenAPI document is made of them.

Checked further, and by the same code as everything else, in :mod:`cuda_agent.pool.wire`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cuda_agent.config import Device, Precision, Scope, Track
from cuda_agent.pool.contract import JobState
from cuda_agent.pool.wire import MAX_ASSETS, MAX_CODE_BYTES
from cuda_agent.workspace.snapshot import MAX_FILES

Base64 = Annotated[str, Field(description="Bytes in base64.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TaskBody(_Strict):
    """The reference."""

    code: Annotated[str, Field(max_length=MAX_CODE_BYTES, description="Python source, KernelBench's form.")]
    name: Annotated[str, Field(max_length=200)] = "task"
    assets: Annotated[
        dict[str, Base64], Field(max_length=MAX_ASSETS, description="weights*.pt that the code reads.")
    ] = {}


class ConfigBody(_Strict):
    """The contract; what is left out has the judge's own default."""

    device: Device = Device.AUTO
    track: Track = Track.MATCHED
    precision: Precision = Precision.DEFAULT
    gpu: Annotated[int, Field(ge=0, le=1024, description="The pool's to choose: ignored.")] = 0
    num_draws: int = 5
    timing_budget_s: Annotated[float, Field(allow_inf_nan=False)] = 6.0
    build_limit_s: Annotated[float, Field(allow_inf_nan=False)] = 300.0
    run_limit_s: Annotated[float, Field(allow_inf_nan=False)] = 120.0


class SubmitBody(_Strict):
    """A candidate to judge."""

    task: TaskBody
    files: Annotated[
        dict[str, Base64],
        Field(max_length=MAX_FILES, description="model_new.py and kernels/*, by path in the workspace."),
    ]
    config: ConfigBody = ConfigBody()
    scope: Scope = Scope.FULL
    task_given: bool = True
    caller: Annotated[
        str, Field(min_length=1, max_length=100, description="Callers take turns in the queue.")
    ] = "anonymous"
    id: Annotated[
        str | None,
        Field(pattern="^[0-9a-f]{32}$", description="The caller's own, to submit again without harm."),
    ] = None


class SubmittedBody(BaseModel):
    """The job's id."""

    id: str


class JobBody(BaseModel):
    """A job at one moment."""

    id: str
    caller: str
    state: JobState
    position: int | None
    device: str | None
    lines: list[str]
    num_lines: int
    result: dict[str, Any] | None
    error: dict[str, str] | None
    waited_s: float
    ran_s: float


class HealthBody(BaseModel):
    """Whether jobs are taken."""

    ok: bool
    state: str
    devices: dict[str, str]
    version: str


class ErrorDetail(BaseModel):
    """One error, as a command line would show it."""

    kind: str
    cause: str
    remedy: str


class ErrorBody(BaseModel):
    """Every answer that is none of the above."""

    error: ErrorDetail
