"""Honest candidates on a GPU, written in unlike ways: none may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from candidates import TASK
from cuda_candidates import FORWARD, KERNEL, candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Stage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
HEAD = KERNEL[: KERNEL.index('extern "C"')]
ENTRY = """extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width, void* stream) {
    const cudaStream_t main = (cudaStream_t)stream;
    const int w = (int)width / 4;
"""
LAUNCH = """scaled_relu<<<132 * 4, 256, 0, %s>>>((float4*)(y + %s), (const float4*)(x + %s),
        (const float4*)scale, (const float4*)shift, %s, w);
"""


def entry(body: str) -> str:
    return f"{HEAD}{ENTRY}{body}}}\n"


KERNELS = {
    "plain": KERNEL,
    "persistent blocks": KERNEL.replace("132 * 16", "132"),
    "two streams, joined": entry(
        """    static cudaStream_t side = nullptr;
    static cudaEvent_t forked, done;
    if (!side) {
        cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    }
    const long half = rows / 2, at = half * width;
    cudaEventRecord(forked, main);
    cudaStreamWaitEvent(side, forked, 0);
    """
        + LAUNCH % ("side", "at", "at", "rows - half")
        + "    "
        + LAUNCH % ("main", "0", "0", "half")
        + "    cudaEventRecord(done, side);\n    cudaStreamWaitEvent(main, done, 0);\n"
    ),
    "a graph for each pair of addresses": "#include <map>\n#include <utility>\n"
    + entry(
        """    static std::map<std::pair<void*, const void*>, cudaGraphExec_t> graphs;
    static cudaStream_t own = nullptr;
    if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    auto& graph = graphs[{y, x}];
    if (!graph) {
        cudaGraph_t captured;
        cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal);
        """
        + LAUNCH % ("own", "0", "0", "rows")
        + """        cudaStreamEndCapture(own, &captured);
        cudaGraphInstantiate(&graph, captured, 0);
        cudaGraphDestroy(captured);
    }
    cudaGraphLaunch(graph, main);
"""
    ),
    "scratch from the stream's pool": entry(
        """    float* work = nullptr;
    cudaMallocAsync((void**)&work, rows * width * 4, main);
    cudaMemcpyAsync(work, x, rows * width * 4, cudaMemcpyDeviceToDevice, main);
    x = work;
    """
        + LAUNCH % ("main", "0", "0", "rows")
        + "    cudaFreeAsync(work, main);\n"
    ),
    "in parts, one after another": entry(
        "    const long half = rows / 2, at = half * width;\n    "
        + LAUNCH % ("main", "0", "0", "half")
        + "    "
        + LAUNCH % ("main", "at", "at", "rows - half")
    ),
    "a workspace of its own": entry(
        """    static float* work = nullptr;
    static long room = 0;
    if (room < rows * width) { cudaFree(work); cudaMalloc(&work, rows * width * 4); room = rows * width; }
    cudaMemcpyAsync(work, x, rows * width * 4, cudaMemcpyDeviceToDevice, main);
    x = work;
    """
        + LAUNCH % ("main", "0", "0", "rows")
    ),
}


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    config = JudgeConfig(device=Device.CUDA, timing_budget_s=0.5, run_limit_s=60.0)
    code = TASK.code.replace("64, 384", "2048, 2048").replace("[384]", "[2048]")
    with JudgeSession(replace(TASK, code=code), config) as opened:
        yield opened


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(session: JudgeSession, name: str) -> None:
    result = session.judge(candidate(kernel=KERNELS[name]), Scope.FULL)
    assert (result.correct, result.violations, result.stage) == (True, (), Stage.DONE), result.to_json()


def test_weights_folded_in_prepare(session: JudgeSession) -> None:
    frozen = candidate(
        init="self.folded = None",
        methods="def prepare(self):\n    self.folded = (self.scale * 1.0).contiguous(), self.shift.clone()",
        forward=FORWARD.replace("self.scale, self.shift", "*self.folded"),
    )
    result = session.judge(frozen, Scope.FULL)
    assert (result.correct, result.violations, result.stage) == (True, (), Stage.DONE), result.to_json()
