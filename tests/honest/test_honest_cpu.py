"""Honest candidates on a CPU, written in unlike ways: none may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Stage
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.2, run_limit_s=30.0)
HEAD = KERNEL[: KERNEL.index("{") + 1]


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, CONFIG) as opened:
        yield opened


KERNELS = {
    "openmp": HEAD
    + """
#pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < width; ++j) {
            const float v = x[i * width + j] * scale[j];
            y[i * width + j] = (v > 0.0f ? v : v != v ? v : 0.0f) + shift[j];
        }
}
""",
    "vectors": "#include <immintrin.h>\n"
    + HEAD
    + """
    const __m128 zero = _mm_setzero_ps();
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < width; j += 4) {
            const __m128 v = _mm_mul_ps(_mm_loadu_ps(x + i * width + j), _mm_loadu_ps(scale + j));
            // maxps gives its second operand where one is NaN.
            _mm_storeu_ps(y + i * width + j, _mm_add_ps(_mm_max_ps(zero, v), _mm_loadu_ps(shift + j)));
        }
}
""",
    "static scratch": "#include <vector>\n"
    + HEAD
    + """
    static thread_local std::vector<float> row;
    row.resize(width);
    for (long i = 0; i < rows; ++i) {
        for (long j = 0; j < width; ++j) row[j] = x[i * width + j] * scale[j];
        for (long j = 0; j < width; ++j)
            y[i * width + j] = (row[j] > 0.0f ? row[j] : row[j] != row[j] ? row[j] : 0.0f) + shift[j];
    }
}
""",
    "static table": "#include <vector>\n"
    + KERNEL.replace('extern "C" void run_kernel', "static void work")
    + HEAD
    + """
    static std::vector<long> starts;
    if ((long)starts.size() != rows) {
        starts.resize(rows);
        for (long i = 0; i < rows; ++i) starts[i] = i * width;
    }
    for (const long at : starts) work(y + at, x + at, scale, shift, 1, width);
}
""",
    "openmp tasks": KERNEL.replace('extern "C" void run_kernel', "static void work")
    + HEAD
    + """
    #pragma omp parallel
    #pragma omp single
    for (long i = 0; i < rows; i += 16) {
        #pragma omp task firstprivate(i)
        work(y + i * width, x + i * width, scale, shift, rows - i < 16 ? rows - i : 16, width);
    }
}
""",
    "threads joined": "#include <thread>\n"
    + KERNEL.replace('extern "C" void run_kernel', "static void work")
    + HEAD
    + """
    std::thread half(work, y, x, scale, shift, rows / 2, width);
    const long done = rows / 2 * width;
    work(y + done, x + done, scale, shift, rows - rows / 2, width);
    half.join();
}
""",
}
FORWARDS = {
    "own buffer": """
        if not hasattr(self, "work"):
            self.work = torch.empty_like(x)
        cuda_extension.run(self.work, x, self.scale, self.shift)
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y
    """,
    "views": """
        y = x.new_empty(x.shape)
        rows = x.size(0) // 2
        for part, out in zip(x.split(rows), y.split(rows)):
            cuda_extension.run(out, part.view_as(part), self.scale.detach(), self.shift)
        return y.view(-1).unflatten(0, x.shape)
    """,
    "workspaces by shape": """
        if not hasattr(self, "rooms"):
            self.rooms = {}
        room = self.rooms.get(x.shape)
        if room is None:
            room = self.rooms[x.shape] = torch.empty_like(x)
        cuda_extension.run(room, x, self.scale, self.shift)
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y
    """,
    "try and pass in the text": """
        try:
            y = torch.empty_like(x)
            cuda_extension.run(y, x, self.scale, self.shift)
        except RuntimeError:
            raise
        finally:
            pass
        return y
    """,
    "fallback never taken": """
        if x.dim() != 2:
            return torch.relu(x * self.scale) + self.shift
        y = torch.zeros_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y
    """,
}


# Each takes seconds; the others tell most.
SLOW = ("static table", "openmp tasks", "workspaces by shape", "try and pass in the text")


def _params(names: dict[str, str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else []) for name in names]


def accepted(session: JudgeSession, folder: Path) -> None:
    result = session.judge(freeze(folder), Scope.FULL)
    assert result.correct is True, result.to_json()
    assert (result.stage, result.violations, result.fault) == (Stage.DONE, (), None)
    assert result.reward in (1, 2, 3)


@pytest.mark.parametrize("name", _params(KERNELS))
def test_kernels(session: JudgeSession, tmp_path: Path, name: str) -> None:
    accepted(session, write_candidate(tmp_path, kernel=KERNELS[name]))


@pytest.mark.parametrize("name", _params(FORWARDS))
def test_forwards(session: JudgeSession, tmp_path: Path, name: str) -> None:
    accepted(session, write_candidate(tmp_path, forward=FORWARDS[name]))


def test_prepare_that_folds_weights(session: JudgeSession, tmp_path: Path) -> None:
    accepted(
        session,
        write_candidate(
            tmp_path,
            init="self.folded = None",
            methods="""
            def prepare(self):
                self.folded = (self.scale.detach() * 1.0).contiguous(), self.shift.clone()
            """,
            forward="""
            if self.folded is None:
                self.prepare()
            y = torch.empty_like(x)
            cuda_extension.run(y, x, *self.folded)
            return y
            """,
        ),
    )


# The shared binding reads float32 and rows of equal length: these tasks need no other.
OUTPUTS = TASK.code.replace(
    "return torch.relu(x * self.scale) + self.shift",
    'y = torch.relu(x * self.scale) + self.shift\n        return {"y": y, "same": (y, x.shape[0])}',
)
IN_PLACE = TASK.code.replace(
    "return torch.relu(x * self.scale) + self.shift",
    "return x.mul_(self.scale).relu_().add_(self.shift).mul_(-2)",
)
TRANSPOSED = TASK.code.replace("[torch.randn(64, 384)]", "[torch.randn(384, 64).t()]").replace(
    "torch.relu(x * self.scale) + self.shift", "torch.relu(x.t() * self.scale[:64]) + self.shift[:64]"
)
TASKS = {
    "several outputs": (
        OUTPUTS,
        """
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return {"y": y, "same": (y, x.shape[0])}
        """,
    ),
    "in place as the reference": (
        IN_PLACE,
        """
        cuda_extension.run(x, x, self.scale, self.shift)
        return x
        """,
    ),
    "inputs not contiguous": (
        TRANSPOSED,
        """
        y = torch.empty(384, 64)
        cuda_extension.run(y, x.t(), self.scale, self.shift)
        return y
        """,
    ),
    "float16 as bits": (
        TASK.code.replace("torch.randn(64, 384)]", "torch.randn(64, 384).half()]")
        .replace("torch.ones(width)", "torch.ones(width, dtype=torch.half)")
        .replace("torch.zeros(width)", "torch.zeros(width, dtype=torch.half)"),
        """
        y = torch.empty_like(x)
        wide = torch.float32
        cuda_extension.run(y.view(wide), x.view(wide), self.scale.view(wide), self.shift.view(wide))
        return y
        """,
    ),
}
HALF_KERNEL = """
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    auto* out = reinterpret_cast<_Float16*>(y);
    const auto* in = reinterpret_cast<const _Float16*>(x);
    const auto* s = reinterpret_cast<const _Float16*>(scale);
    const auto* b = reinterpret_cast<const _Float16*>(shift);
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < 2 * width; ++j) {
            const float v = float(in[i * 2 * width + j]) * float(s[j]);
            out[i * 2 * width + j] = _Float16((v > 0.0f ? v : v != v ? v : 0.0f) + float(b[j]));
        }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_other_tasks(tmp_path: Path, name: str) -> None:
    code, forward = TASKS[name]
    assert code != TASK.code
    half = "half()" in code
    kernel = HALF_KERNEL if half else KERNEL
    if "mul_(-2)" in code:
        kernel = KERNEL.replace(
            "= (v > 0.0f ? v : v != v ? v : 0.0f) + shift[j]", "= -2 * ((v > 0 ? v : 0) + shift[j])"
        )
    folder = write_candidate(tmp_path, forward=forward, kernel=kernel)
    if half:
        model = folder / "model_new.py"
        text = model.read_text().replace("(width)", "(width, dtype=torch.half)", 2)
        model.write_text(text.replace("torch.zeros(width)", "torch.zeros(width, dtype=torch.half)"))
    with JudgeSession(Task(code=code, name="variant"), CONFIG) as session:
        accepted(session, folder)
