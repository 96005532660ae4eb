"""Cheats that need a GPU: streams, graphs, launches that fail, precision of the device's own units."""

from __future__ import annotations

from cheat import COMPUTE, RUN, STALE, TAMPER, Cheat
from cuda_candidates import KERNEL

from cuda_agent.config import Scope
from cuda_agent.result import ViolationKind

_LAUNCH = "    scaled_relu<<<132 * 16, 256, 0, (cudaStream_t)stream>>>("
assert _LAUNCH in KERNEL
_SIDE = (
    "    static cudaStream_t side = nullptr;\n"
    "    if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);\n"
)


def _launched(instead: str, before: str = "") -> str:
    """The kernel with another launch, and code in front of it."""
    return KERNEL.replace(_LAUNCH, f"{before}    {instead}(", 1)


_GRAPH = _launched(
    "scaled_relu<<<132 * 16, 256, 0, own>>>",
    """    static cudaGraphExec_t replay = nullptr;
    static cudaStream_t own = nullptr;
    static float* first = nullptr;
    if (replay) {
        cudaGraphLaunch(replay, (cudaStream_t)stream);
        cudaMemcpyAsync(y, first, rows * width * 4, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
        return;
    }
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaMalloc(&first, rows * width * 4);
    float* const out = y;
    y = first;
    cudaGraph_t graph;
    cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal);
""",
).replace(
    "rows, (int)width / 4);\n",
    """rows, (int)width / 4);
    cudaStreamEndCapture(own, &graph);
    cudaGraphInstantiate(&replay, graph, 0);
    cudaGraphLaunch(replay, (cudaStream_t)stream);
    cudaMemcpyAsync(out, first, rows * width * 4, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
""",
)
_LATE = "#include <chrono>\n#include <thread>\n" + _launched(
    "scaled_relu<<<1, 64, 0, (cudaStream_t)stream>>>",
    """    std::thread([=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        scaled_relu<<<132 * 16, 256>>>((float4*)y, (const float4*)x, (const float4*)scale,
                                       (const float4*)shift, rows, (int)width / 4);
    }).detach();
    rows = 1;
""",
)
_HALF = KERNEL.replace(
    "#include <cuda_runtime.h>", "#include <cuda_fp16.h>\n#include <cuda_runtime.h>"
).replace("fmaxf(v.x * s.x, 0.0f)", "__half2float(__float2half(fmaxf(v.x * s.x, 0.0f)))")
_KEPT = """
self.kept = getattr(self, "kept", {})
if x.data_ptr() not in self.kept:
    y = self.kept[x.data_ptr()] = torch.empty_like(x)
    cuda_extension.run(y, x, self.scale, self.shift)
return self.kept[x.data_ptr()]
"""
_EAGER_GRAPH = """
if not hasattr(self, "graph"):
    self.x = torch.empty_like(x)
    self.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.graph):
        self.y = torch.relu(self.x * self.scale) + self.shift
self.x.copy_(x)
self.graph.replay()
return self.y
"""

CUDA_CHEATS = (
    Cheat(
        "work on a stream left open",
        (73, 74),
        "output compared at return",
        kernel=_launched("scaled_relu<<<1, 64, 0, side>>>", _SIDE),
    ),
    Cheat("host thread launches late", (75, 76, 79), "output compared at return", kernel=_LATE),
    Cheat(
        "launch that fails",
        (51,),
        "poisoned outputs",
        kernel=_launched("scaled_relu<<<132 * 16, 256, 1 << 20, (cudaStream_t)stream>>>"),
    ),
    Cheat(
        "graph that replays old inputs",
        (67,),
        "new values at new addresses",
        STALE,
        kernel=_GRAPH,
        scope=Scope.FULL,
    ),
    Cheat("eager operators in a graph", (15,), "dispatcher guard", COMPUTE, forward=_EAGER_GRAPH),
    # Of outputs this large the judge keeps one, and inputs alternate between two addresses: wrong, unnamed.
    Cheat("cached by pointer on a GPU", (57,), "same address, new bytes", forward=_KEPT),
    Cheat(
        "half precision on a GPU", (44,), "error budget", frozenset({ViolationKind.PRECISION}), kernel=_HALF
    ),
    Cheat(
        "events patched on a GPU",
        (86,),
        "static scan",
        TAMPER,
        imports="torch.cuda.Event.elapsed_time = lambda *a: 0.001",
    ),
    Cheat(
        "fig leaf on a GPU",
        (9,),
        "dispatcher guard",
        COMPUTE,
        forward=f"{RUN}return torch.relu(x * self.scale) + self.shift",
    ),
)
