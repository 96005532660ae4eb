"""The HTTP interface of a pool.

======================== ==========================================================
POST /v1/jobs            submit a candidate: 202 and the job's id
GET /v1/jobs/ID          the job; waits up to ``wait_s`` for its end or for a line after ``seen``
GET /v1/jobs/ID/result   the verdict's JSON, as ``cuda-agent judge --json`` prints it
DELETE /v1/jobs/ID       cancel
GET /v1/metrics          queue, devices, rates
GET /v1/health           whether jobs are taken; needs no token
======================== ==========================================================
"""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

import cuda_agent
from cuda_agent.errors import CudaAgentError, InfrastructureError, PoolError, UsageError
from cuda_agent.pool.contract import Job, JobState, NoSuchJobError, Pool, QueueFullError, plain
from cuda_agent.pool.wire import error_to_dict, request_from_dict
from cuda_agent.serve.limits import BodyLimit, TokenRequired
from cuda_agent.serve.schema import ErrorBody, HealthBody, JobBody, SubmitBody, SubmittedBody

MAX_BODY_BYTES = 96 << 20
_MAX_WAIT_S = 30.0
_LOOK_S = 0.05
_RETRY_AFTER_S = 2
_STATUSES: tuple[tuple[type[CudaAgentError], int], ...] = (
    (NoSuchJobError, 404),
    (QueueFullError, 429),
    (PoolError, 503),
    (InfrastructureError, 503),
)
_WORDS = {
    400: "The request cannot be judged.",
    401: "The token is missing or wrong.",
    404: "No such job, or no longer.",
    409: "The job has no verdict (yet).",
    413: "The body is too large.",
    422: "The request does not fit the schema.",
    429: "The queue is full: later.",
    503: "The pool shuts down, or its device is lost.",
}

JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


def make_app(pool: Pool, *, token: str, folder: FilePath, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The application for a pool.

    Args:
        pool: who judges.
        token: what every caller shows.
        folder: for the files of tasks, as long as these wait or run.
        max_body_bytes: largest request.
    """
    app = FastAPI(title="cuda-agent pool", version=cuda_agent.__version__, redoc_url=None)
    _add_submit(app, pool, folder)
    _add_jobs(app, pool)
    _add_facts(app, pool)
    app.add_exception_handler(CudaAgentError, _told)
    app.add_exception_handler(RequestValidationError, _misfit)
    app.add_exception_handler(HTTPException, _http)
    # The last added is the first met: the token before the body.
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    app.add_middleware(TokenRequired, token=token)
    _describe_token(app)
    return app


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": _WORDS[status]} for status in (401, 413, *statuses)}


def _add_submit(app: FastAPI, pool: Pool, folder: FilePath) -> None:
    @app.post("/v1/jobs", status_code=202, responses=_answers(400, 422, 429, 503))
    def submit(body: SubmitBody) -> SubmittedBody:
        """Queue a candidate."""
        data = body.model_dump()
        # A folder of its own: two tasks may have files of one name.
        request = request_from_dict(data, folder=folder / secrets.token_hex(16))
        return SubmittedBody(id=pool.submit(request, caller=body.caller, job_id=body.id or ""))


def _add_jobs(app: FastAPI, pool: Pool) -> None:
    @app.get("/v1/jobs/{job_id}", response_model=JobBody, responses=_answers(404, 422, 503))
    async def job(
        job_id: JobId,
        wait_s: Annotated[float, Query(ge=0, le=_MAX_WAIT_S)] = 0.0,
        seen: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    ) -> dict[str, Any]:
        """A job at this moment, or at its next line or ending."""
        return plain(await _awaited(pool, job_id, wait_s=wait_s, seen=seen))

    @app.get("/v1/jobs/{job_id}/result", responses=_answers(404, 409, 422, 503))
    def result(job_id: JobId) -> dict[str, Any]:
        """The verdict."""
        found = pool.job(job_id)
        if found.result is None:
            raise HTTPException(409, f"job {job_id} is {found.state} and has no verdict")
        verdict: dict[str, Any] = plain(found)["result"]
        return verdict

    @app.delete("/v1/jobs/{job_id}", response_model=JobBody, responses=_answers(404, 422, 503))
    def cancel(job_id: JobId) -> dict[str, Any]:
        """End a job that has not ended."""
        return plain(pool.cancel(job_id))


def _add_facts(app: FastAPI, pool: Pool) -> None:
    @app.get("/v1/metrics", responses=_answers(503))
    def metrics() -> dict[str, Any]:
        """Counts, rates and devices."""
        return plain(pool.metrics())

    @app.get("/v1/health", response_model=HealthBody, responses={503: {"model": HealthBody}})
    def health() -> JSONResponse:
        """Whether any device works."""
        devices = {d.device: d.out_of_use or "in use" for d in pool.metrics().devices}
        ok = any(words == "in use" for words in devices.values())
        body = HealthBody(
            ok=ok,
            state="up" if ok else "no device is left",
            devices=devices,
            version=cuda_agent.__version__,
        )
        return JSONResponse(body.model_dump(), 200 if ok else 503)


async def _awaited(pool: Pool, job_id: str, *, wait_s: float, seen: int) -> Job:
    """Looks again and again: a waiting thread for each caller would soon be all threads."""
    deadline = time.monotonic() + wait_s
    while True:
        job = pool.job(job_id)
        if job.state.ended or job.num_lines > seen or time.monotonic() >= deadline:
            return job
        await asyncio.sleep(_LOOK_S if job.state is JobState.RUNNING else 2 * _LOOK_S)


def _told(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CudaAgentError)
    status = next((number for kind, number in _STATUSES if isinstance(error, kind)), 400)
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if status in (429, 503) else None
    return JSONResponse({"error": error_to_dict(error)}, status, headers)


def _misfit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:200]
    told = UsageError(f"the request does not fit: {where}: {first['msg']}", "See docs/serving.md.")
    return JSONResponse({"error": error_to_dict(told)}, 422)


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = {"error": error_to_dict(UsageError(str(error.detail)))}
    headers = dict(error.headers or {})
    if error.status_code == 405:  # a path's methods lie on several routes, of which the error knows one
        headers["Allow"] = ", ".join(_methods(request))
    return JSONResponse(body, error.status_code, headers)


def _methods(request: Request) -> list[str]:
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods or ()})


def _describe_token(app: FastAPI) -> None:
    """The token in the OpenAPI document; it is checked in the middleware, before a body is read."""
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        if path != "/v1/health":
            for operation in methods.values():
                operation["security"] = [{"token": []}]
