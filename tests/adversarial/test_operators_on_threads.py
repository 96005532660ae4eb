"""Operators on threads that a thread-local guard does not see (HACKS.md 4, 5, 76)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import BINDING, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.result import ViolationKind
from cuda_agent.workspace.snapshot import freeze

BODY = "at::NoGradGuard off; at::relu_out(y, at::mul(x, scale)); y.add_(shift);"
ROUTES = {
    "joined thread": (
        "<thread>",
        f"pybind11::gil_scoped_release free; std::thread work([&] {{ {BODY} }}); work.join();",
    ),
    "async": (
        "<future>",
        f"pybind11::gil_scoped_release free; std::async(std::launch::async, [&] {{ {BODY} }}).get();",
    ),
}


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CPU, timing_budget_s=0.2, run_limit_s=20.0)
    with JudgeSession(TASK, config) as opened:
        yield opened


def threaded(folder: Path, header: str, body: str) -> Path:
    """A candidate whose binding runs ``body``, with ATen's operators in reach."""
    write_candidate(folder)
    start = BINDING.index("    run_kernel(y.data_ptr")
    end = BINDING.index("}", start)
    headers = [header, *(f"<ATen/ops/{name}.h>" for name in ("mul", "relu", "empty_like"))]
    included = "".join(f"#include {name}\n" for name in headers)
    text = f"{included}{BINDING[:start]}    {body}\n{BINDING[end:]}"
    (folder / "kernels" / "scaled_relu_binding.cpp").write_text(text)
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param("joined thread"), pytest.param("async", marks=pytest.mark.slow)]
)
def test_operators_on_a_joined_thread_are_seen(session: JudgeSession, tmp_path: Path, name: str) -> None:
    result = session.judge(freeze(threaded(tmp_path, *ROUTES[name])), Scope.VERIFY)
    assert result.correct is False, result.to_json()
    assert {v.kind for v in result.violations} == {ViolationKind.TORCH_COMPUTE}, result.detail


@pytest.mark.slow
def test_allocations_on_a_joined_thread_are_no_offence(session: JudgeSession, tmp_path: Path) -> None:
    start = BINDING.index("    run_kernel(y.data_ptr")
    honest = BINDING[start : BINDING.index("}", start)]
    allocate = "w = at::empty_like(y).view({-1});"
    thread = f"std::thread t([&] {{ {allocate} }}); t.join();"
    body = f"at::Tensor w; {{ pybind11::gil_scoped_release free; {thread} }}"
    body += honest
    result = session.judge(freeze(threaded(tmp_path, "<thread>", body)), Scope.VERIFY)
    assert result.correct is not False and not result.violations, result.detail
