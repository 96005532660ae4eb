"""Cheats that exist on a CPU: each must end in a refusal whose kind fits. Real builds, real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession, judge
from cuda_agent.result import Fault, Result, Stage, ViolationKind
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=20.0)
RUN = """
y = torch.empty_like(x)
cuda_extension.run(y, x, self.scale, self.shift)
"""
HONEST = f"{RUN}return y"


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, CONFIG) as opened:
        yield opened


def refused(result: Result) -> None:
    assert result.correct is False, result.to_json()
    assert result.reward in (-1, None) and result.infrastructure is None
    assert result.detail


def kinds(result: Result) -> set[ViolationKind]:
    return {violation.kind for violation in result.violations}


COMPUTE = {
    "method of a tensor": "return (x * self.scale).relu_().add_(self.shift)",
    "functional bound early": f"if x.numel():\n    return early(x * self.scale) + self.shift\n{HONEST}",
    "torch._C": "return torch._C._VariableFunctions.relu(x * self.scale) + self.shift",
    "submodule": "return self.helper(x * self.scale) + self.shift",
    "copy by contiguous": f"x = x.t().contiguous().t()\n{HONEST}",
    "cast": f"x = x.double().float()\n{HONEST}",
    "out form": "y = torch.empty_like(x)\ntorch.mul(x, self.scale, out=y)\nreturn y",
    "forward hook": "return x",
    "autograd function": "return Fn.apply(x, self.scale) + self.shift",
    "inside prepare": f"if not hasattr(self, 'seen'):\n    self.seen = x.clone()\n{HONEST}",
}
IMPORTS = """
import torch.nn.functional as F
early = F.relu
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        return (x * s).clamp(min=0)
"""
HOOK = """
self.helper = nn.ReLU()
self.hook = self.register_forward_hook(lambda m, i, o: (i[0] * m.scale).relu() + m.shift)
"""


@pytest.mark.parametrize("name", COMPUTE)
def test_torch_compute_by_any_route(session: JudgeSession, tmp_path: Path, name: str) -> None:
    init = HOOK if name == "forward hook" else "self.helper = nn.ReLU()"
    folder = write_candidate(tmp_path, forward=COMPUTE[name], imports=IMPORTS, init=init)
    result = session.judge(freeze(folder), Scope.VERIFY)
    refused(result)
    assert kinds(result) == {ViolationKind.TORCH_COMPUTE}


FORWARDS = {
    "zeros": ("return torch.zeros_like(x)", set()),
    "the input back": ("return x", set()),
    "a view of the input": ("return x.view(64, 384)", set()),
    "scalar to broadcast": ("return torch.zeros(())", set()),
    "tuple of one": (f"{RUN}return (y,)", set()),
    "wider dtype": ("return torch.zeros(64, 384, dtype=torch.float64)", set()),
    "larger storage": (
        "z = torch.empty(128, 384)\ncuda_extension.run(z[:64], x, self.scale, self.shift)\nreturn z[::2]",
        set(),
    ),
    "nothing": ("return None", set()),
    "cached by pointer": (
        "self.kept = getattr(self, 'kept', {})\n"
        "if x.data_ptr() not in self.kept:\n"
        "    y = self.kept[x.data_ptr()] = torch.empty_like(x)\n"
        "    cuda_extension.run(y, x, self.scale, self.shift)\n"
        "return self.kept[x.data_ptr()]",
        {ViolationKind.STALE_OUTPUT},
    ),
    "subclass made by name": (f"{RUN}return type('T', (type(x),), {{}})(y)", set()),
    "python exit": ("raise SystemExit(0)", set()),
    "exit by name": ("getattr(__import__('o' + 's'), '_ex' + 'it')(0)", set()),
    "recursion": ("return self.forward(x)", set()),
    "interrupt": ("raise KeyboardInterrupt", set()),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards_that_do_not_do_the_work(session: JudgeSession, tmp_path: Path, name: str) -> None:
    forward, expected = FORWARDS[name]
    result = session.judge(freeze(write_candidate(tmp_path, forward=forward)), Scope.VERIFY)
    refused(result)
    assert kinds(result) == expected, result.detail


SOURCES = {
    "reference imported": ("from model import Model", ViolationKind.FORBIDDEN_IMPORT),
    "timer patched": ("import time\ntime.perf_counter_ns = lambda: 0", ViolationKind.TAMPERING),
    "torch patched": ("torch.equal = lambda a, b: True", ViolationKind.TAMPERING),
    "builtins patched": ("import builtins\nbuiltins.sorted = lambda *a, **k: []", ViolationKind.TAMPERING),
    "modules patched": ("import sys\nsys.modules['time'] = None", ViolationKind.TAMPERING),
    "frames": ("import sys\nframe = sys._getframe(1)", ViolationKind.TAMPERING),
    "garbage collector": ("import gc\nthings = gc.get_objects()", ViolationKind.TAMPERING),
    "guard off": (
        "from torch.utils._python_dispatch import _disable_current_modes",
        ViolationKind.TAMPERING,
    ),
    "thread": ("import threading\nlate = threading.Thread", ViolationKind.LATE_WORK),
    "subprocess": ("import subprocess", ViolationKind.FORBIDDEN_IMPORT),
    "ctypes": ("import ctypes", ViolationKind.FORBIDDEN_IMPORT),
    "compiler": ("fast = torch.compile(nn.ReLU())", ViolationKind.FORBIDDEN_IMPORT),
    "fork": ("import os\nif os.fork() == 0:\n    pass", ViolationKind.PROCESS_ESCAPE),
    "exit at import": ("import os\nos._exit(0)", ViolationKind.PROCESS_ESCAPE),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_that_tamper_do_not_reach_a_process(session: JudgeSession, tmp_path: Path, name: str) -> None:
    imports, kind = SOURCES[name]
    result = session.judge(freeze(write_candidate(tmp_path, imports=imports)), Scope.VERIFY)
    refused(result)
    assert result.stage is Stage.BUILD and kind in kinds(result)


LATE_THREAD = """
#include <chrono>
#include <thread>
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    work(y, x, scale, shift, rows, width / 2);
    std::thread([=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        work(y, x, scale, shift, rows, width);
    }).detach();
}
"""
STATIC_CACHE = """
#include <cstring>
#include <vector>
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    static std::vector<float> kept;
    if (kept.empty()) { work(y, x, scale, shift, rows, width); kept.assign(y, y + rows * width); }
    else std::memcpy(y, kept.data(), kept.size() * 4);
}
"""
PREFIX_CACHE = """
#include <cstring>
#include <map>
#include <utility>
#include <vector>
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    static std::map<std::pair<float, float>, std::vector<float>> kept;
    auto& was = kept[{x[0], x[1]}];
    if (was.empty()) { work(y, x, scale, shift, rows, width); was.assign(y, y + rows * width); }
    else std::memcpy(y, was.data(), was.size() * 4);
}
"""


def first(statement: str) -> str:
    """The kernel with a statement before its loops."""
    return KERNEL.replace("    for (long i", f"    {statement}\n    for (long i", 1)


def as_work(kernel: str) -> str:
    return kernel.replace('extern "C" void run_kernel', "static void work")


KERNELS = {
    "late thread": (as_work(KERNEL) + LATE_THREAD, set()),
    "static cache": (as_work(KERNEL) + STATIC_CACHE, {ViolationKind.STALE_OUTPUT}),
    "input zeroed": (
        KERNEL.replace("const float v", "const_cast<float*>(x)[0] = 0.0f; const float v"),
        None,
    ),
    "child process": (
        "#include <unistd.h>\n" + first("if (fork() == 0) _exit(0);"),
        {ViolationKind.PROCESS_ESCAPE},
    ),
    "shell": ("#include <cstdlib>\n" + first('system("true");'), {ViolationKind.PROCESS_ESCAPE}),
    "library opened": (
        "#include <dlfcn.h>\n" + first('dlopen("libm.so.6", 2);'),
        {ViolationKind.FORBIDDEN_LIBRARY},
    ),
    "own clock": (
        "#include <ctime>\n"
        'extern "C" int clock_gettime(clockid_t, timespec* t) noexcept { *t = {}; return 0; }\n' + KERNEL,
        {ViolationKind.TAMPERING},
    ),
    "abort": ("#include <cstdlib>\n" + first("std::abort();"), set()),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_that_cheat(session: JudgeSession, tmp_path: Path, name: str) -> None:
    kernel, expected = KERNELS[name]
    result = session.judge(freeze(write_candidate(tmp_path, kernel=kernel)), Scope.VERIFY)
    refused(result)
    assert expected is None or kinds(result) == expected, result.detail


TORCH = "    return torch.relu(x * self.scale) + self.shift"
HIDDEN = {
    "counts calls": f"self.n = getattr(self, 'n', 0) + 1\nif self.n > 60:\n{TORCH}\n{HONEST}",
    "knows the address": (
        "self.seen = getattr(self, 'seen', {})\n"
        "self.seen[x.data_ptr()] = self.seen.get(x.data_ptr(), 0) + 1\n"
        f"if self.seen[x.data_ptr()] > 20:\n{TORCH}\n{HONEST}"
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_torch_compute_in_timed_calls_only(session: JudgeSession, tmp_path: Path, name: str) -> None:
    result = session.judge(freeze(write_candidate(tmp_path, forward=HIDDEN[name])), Scope.FULL)
    refused(result)
    assert kinds(result) == {ViolationKind.TORCH_COMPUTE}


def test_a_cache_keyed_by_a_sample_of_the_input(session: JudgeSession, tmp_path: Path) -> None:
    folder = write_candidate(tmp_path, kernel=as_work(KERNEL) + PREFIX_CACHE)
    result = session.judge(freeze(folder), Scope.FULL)
    refused(result)
    assert kinds(result) & {ViolationKind.STALE_OUTPUT, ViolationKind.HIDDEN_STATE}, result.detail


CLOCK = """
import importlib
clock = importlib.import_module("ti" + "me")
real = clock.perf_counter_ns
vars(clock).update({"perf_counter_ns": lambda: real() // 1000})
"""


def test_a_clock_replaced_past_the_scan_earns_nothing(session: JudgeSession, tmp_path: Path) -> None:
    """A name made at run time passes the scan; the judge's own clock does not hang on it."""
    slow = first("for (volatile long w = 0; w < 2000000; ++w) {}")
    result = session.judge(freeze(write_candidate(tmp_path, imports=CLOCK, kernel=slow)), Scope.FULL)
    refused(result)
    assert kinds(result) <= {
        ViolationKind.TIME_MANIPULATION,
        ViolationKind.TAMPERING,
        ViolationKind.BELOW_FLOOR,
    }


def test_files_beside_the_sources_are_not_used(tmp_path: Path) -> None:
    """A prebuilt library, printed lines, result files and shadowing modules change nothing."""
    wrong = KERNEL.replace("+ shift[j]", "+ shift[j] + 1.0f")
    folder = write_candidate(
        tmp_path, kernel=wrong, imports="print('[PASS] verify success')\nopen('result.json', 'w').write('{}')"
    )
    (folder / "cuda_extension.so").write_bytes(b"\x7fELF")
    (folder / "cuda_extension.py").write_text("def run(y, *a): y.zero_()\n")
    (folder / "torch.py").write_text("raise SystemExit(0)\n")
    (folder / "sitecustomize.py").write_text("raise SystemExit(0)\n")
    (folder / "result.json").write_text('{"correct": true, "reward": 3}')
    result = judge(folder, task=TASK, config=CONFIG, scope=Scope.VERIFY)
    refused(result)
    assert (result.stage, result.violations) == (Stage.VERIFY, ())


@pytest.mark.parametrize("what", ["file", "folder", "model", "huge", "many", "fifo"])
def test_folders_that_cannot_be_frozen_get_a_verdict(tmp_path: Path, what: str) -> None:
    folder = write_candidate(tmp_path)
    kernels = folder / "kernels"
    if what == "file":
        (kernels / "more.cpp").symlink_to("/etc/hostname")
    elif what == "folder":
        (kernels / "more").symlink_to("/etc", target_is_directory=True)
    elif what == "model":
        (folder / "model_new.py").rename(folder / "other.py")
        (folder / "model_new.py").symlink_to("other.py")
    elif what == "huge":
        (kernels / "huge.cpp").write_bytes(b"//" + b" " * (1 << 20))
    elif what == "many":
        for index in range(300):
            (kernels / f"h{index}.h").touch()
    else:
        os.mkfifo(kernels / "pipe.cpp")
    result = judge(folder, task=TASK, config=CONFIG)
    refused(result)
    assert (result.stage, result.reward) == (Stage.BUILD, -1)
    assert result.fault is None or isinstance(result.fault, Fault)
