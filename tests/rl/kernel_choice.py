"""A world of few kernels, all judged by the real judge, so that a policy's expected reward is a finite sum.

Four tasks whose prompt is the same: the module's output is multiplied by a constant that differs. An answer
is two tokens: the constant, and how the kernel is written (fast, slow, or by PyTorch's own operators, which
is refused). After the first answer the policy sees what the judge said of it: of a wrong output, the constant
that explains it. The second answer's kernel is the final workspace and gets the reward. A policy that does
not read the observation can do no better than one fixed kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.reward import reward_of
from cuda_agent.result import Result
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

CONSTANTS = (0.5, 1.5, 3.0, 6.0)
FAST, SLOW, CHEAT = "fast", "slow", "cheat"
WRITINGS = (FAST, SLOW, CHEAT)
KERNELS = tuple(product(range(len(CONSTANTS)), range(len(WRITINGS))))

# Ids of the policy's vocabulary.
PROMPT = 0
CONSTANT_IDS = (1, 2, 3, 4)
WRITING_IDS = (5, 6, 7)
WRONG, RIGHT, REFUSED = 8, 9, 10
SHOWN_IDS = (11, 12, 13, 14)
NUM_IDS = 15

# Left out of torch.compile, whose time is not what the test is about: 15 s a task.
_TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        y = torch.relu(x)
        y = torch.abs(y * y + x) - 0.5 * x
        return torch.clamp(y, -50.0, 50.0) * {constant}


def get_inputs():
    return [torch.randn(16, 256)]


def get_init_inputs():
    return []
"""

# No header of PyTorch's: 4 s to compile, once for all kernels.
_BINDING = """
#include <cstdint>
#include "../binding_registry.h"

extern "C" void run_kernel(float* y, const float* x, long n);

static void run(std::uintptr_t y, std::uintptr_t x, long n) {
    run_kernel(reinterpret_cast<float*>(y), reinterpret_cast<const float*>(x), n);
}

static void bind(pybind11::module& m) { m.def("run", &run); }
REGISTER_BINDING(chain, bind);
"""

_KERNEL = """
extern "C" void run_kernel(float* y, const float* x, long n) {{
    for (long i = 0; i < n; ++i) {{
        {wait}
        const float r = x[i] > 0.0f ? x[i] : x[i] != x[i] ? x[i] : 0.0f;
        const float s = __builtin_fabsf(r * r + x[i]) - 0.5f * x[i];
        y[i] = (s < -50.0f ? -50.0f : s > 50.0f ? 50.0f : s) * {constant}f;
    }}
}}
"""
_WAIT = "for (volatile int w = 0; w < 30; ++w) {}"

_MODEL = """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        {body}
"""
_OWN_KERNEL = """y = torch.empty_like(x)
        cuda_extension.run(y.data_ptr(), x.data_ptr(), x.numel())
        return y"""
_TORCH_KERNEL = """y = torch.relu(x)
        y = torch.abs(y * y + x) - 0.5 * x
        return torch.clamp(y, -50.0, 50.0) * {constant}"""

_VALUES = re.compile(r"got (\S+), expected ([^\s;]+)")


@dataclass(frozen=True)
class Judged:
    """One kernel's verdict on one task: what is trained on, and what the policy reads.

    Attributes:
        result: the judge's.
        reward: of it.
        observation: ids.
    """

    result: Result
    reward: float
    observation: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Verdicts by task and kernel (index in ``KERNELS``)."""

    judged: tuple[tuple[Judged, ...], ...]
    task_hashes: tuple[str, ...]

    @property
    def rewards(self) -> list[list[float]]:
        return [[kernel.reward for kernel in row] for row in self.judged]

    @property
    def uniform(self) -> float:
        """Expected reward of a policy that draws every token at random."""
        flat = [reward for row in self.rewards for reward in row]
        return sum(flat) / len(flat)

    @property
    def blind(self) -> float:
        """Best expected reward without reading: one kernel for all tasks."""
        return max(sum(column) / len(column) for column in zip(*self.rewards, strict=True))

    @property
    def best(self) -> float:
        """Best expected reward: each task's best kernel."""
        return sum(max(row) for row in self.rewards) / len(self.judged)


def judge_all(config: JudgeConfig) -> World:
    """Every kernel judged once on every task, by the whole private suite."""
    rows, hashes = [], []
    for constant in CONSTANTS:
        task = Task(_TASK.format(constant=constant), name=f"times_{constant}")
        hashes.append(task.hash)
        with JudgeSession(task, config) as session:
            rows.append(tuple(_judged(session, *kernel) for kernel in KERNELS))
    return World(tuple(rows), tuple(hashes))


def cpu_config() -> JudgeConfig:
    """Short timing: the kernels' times differ by far more than its noise."""
    return JudgeConfig(device=Device.CPU, timing_budget_s=0.05)


def snapshot(constant: int, writing: int) -> Snapshot:
    """The candidate that an answer stands for."""
    value, how = CONSTANTS[constant], WRITINGS[writing]
    body = _TORCH_KERNEL.format(constant=value) if how == CHEAT else _OWN_KERNEL
    kernel = _KERNEL.format(constant=value, wait=_WAIT if how == SLOW else "")
    return Snapshot(
        {
            "model_new.py": _MODEL.format(body=body).encode(),
            "kernels/chain.cpp": kernel.encode(),
            "kernels/chain_binding.cpp": _BINDING.encode(),
        }
    )


def _judged(session: JudgeSession, constant: int, writing: int) -> Judged:
    result = session.judge(snapshot(constant, writing), Scope.FULL)
    reward = reward_of(result)
    assert reward is not None, result
    return Judged(result, reward, observed(result, constant))


def observed(result: Result, constant: int) -> tuple[int, ...]:
    """The judge's words on a kernel with a constant, as ids."""
    if result.violations:
        return (REFUSED,)
    if result.correct:
        return (RIGHT, SHOWN_IDS[constant])
    found = _VALUES.search(result.detail)
    assert found is not None, result.detail
    got, expected = float(found[1]), float(found[2])
    explains = CONSTANTS[constant] * expected / got
    nearest = min(range(len(CONSTANTS)), key=lambda k: abs(math.log(CONSTANTS[k] / explains)))
    return (WRONG, SHOWN_IDS[nearest])


def kernel_of(ids: Sequence[int]) -> int:
    """Index in ``KERNELS`` of an answer's two ids."""
    return KERNELS.index((CONSTANT_IDS.index(ids[0]), WRITING_IDS.index(ids[1])))


def answer_of(kernel: int) -> tuple[int, int]:
    """The two ids of a kernel."""
    constant, writing = KERNELS[kernel]
    return CONSTANT_IDS[constant], WRITING_IDS[writing]
