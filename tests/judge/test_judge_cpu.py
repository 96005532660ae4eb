"""Whole verdicts on the CPU: real compiler, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import KERNEL, TASK, write_candidate

from cuda_agent.config import Device, JudgeConfig, Scope, Track
from cuda_agent.errors import TaskError
from cuda_agent.judge import JudgeSession
from cuda_agent.result import Fault, Result, Stage, ViolationKind
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import freeze

CONFIG = JudgeConfig(device=Device.CPU, timing_budget_s=0.3, run_limit_s=20.0)


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, CONFIG) as opened:
        yield opened


def verify(session: JudgeSession, folder: Path) -> Result:
    return session.judge(freeze(folder), Scope.VERIFY)


def test_an_honest_candidate_is_correct_timed_and_rewarded(session: JudgeSession, tmp_path: Path) -> None:
    result = session.judge(freeze(write_candidate(tmp_path)), Scope.FULL)
    assert (result.stage, result.correct, result.violations) == (Stage.DONE, True, ())
    assert result.reward in (1, 2, 3)
    assert result.candidate_us is not None and result.eager_us is not None and result.compile_us is not None
    assert result.candidate_us.median > 0
    assert result.inputs == (("float32[64,384]",),)
    assert result.scaled_error is not None and result.error_budget is not None
    assert result.scaled_error["max"] <= result.error_budget["max"]
    assert Result.from_dict(result.to_dict()) == result


def test_a_sleeping_candidate_earns_no_speedup(session: JudgeSession, tmp_path: Path) -> None:
    slow = KERNEL.replace(
        "for (long i = 0;", "for (volatile long w = 0; w < 4000000; ++w) {}\n    for (long i = 0;", 1
    )
    result = session.judge(freeze(write_candidate(tmp_path, kernel=slow)), Scope.FULL)
    assert (result.correct, result.reward) == (True, 1)


def test_wrong_values_are_named(session: JudgeSession, tmp_path: Path) -> None:
    wrong = KERNEL.replace("+ shift[j]", "+ shift[j] + (i == 3 && j == 5 ? 0.25f : 0.0f)")
    result = verify(session, write_candidate(tmp_path, kernel=wrong))
    assert (result.stage, result.correct, result.violations) == (Stage.VERIFY, False, ())
    assert "[3, 5]" in result.detail or "(3, 5)" in result.detail


def test_parameters_at_their_defaults_are_not_enough(session: JudgeSession, tmp_path: Path) -> None:
    ignores = KERNEL.replace("* scale[j]", "")
    folder = write_candidate(tmp_path, kernel=ignores)
    assert verify(session, folder).correct is True
    result = session.judge(freeze(folder), Scope.FULL)
    assert (result.correct, result.reward) == (False, -1)
    assert "perturbed" in result.detail
    # The session goes on with the reference's own parameters.
    assert verify(session, write_candidate(tmp_path / "next")).correct is True


def test_unwritten_output_is_seen(session: JudgeSession, tmp_path: Path) -> None:
    half = KERNEL.replace("i < rows", "i < rows / 2")
    assert verify(session, write_candidate(tmp_path, kernel=half)).correct is False


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.relu(x * self.scale) + self.shift",
        "return torch.ops.aten.add.Tensor(torch.ops.aten.relu.default(x * self.scale), self.shift)",
        """
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.scale, self.shift)
        return y + 0
        """,
        """
        y = torch.empty_like(x)
        try:
            cuda_extension.missing(y)
        except Exception:
            return (x * self.scale).relu() + self.shift
        return y
        """,
    ],
    ids=["functional", "aten", "one-op", "fallback"],
)
def test_torch_compute_is_a_violation(session: JudgeSession, tmp_path: Path, forward: str) -> None:
    result = verify(session, write_candidate(tmp_path, forward=forward))
    assert result.correct is False
    assert [v.kind for v in result.violations] == [ViolationKind.TORCH_COMPUTE]


def test_a_cached_output_is_stale(session: JudgeSession, tmp_path: Path) -> None:
    forward = """
        if not hasattr(self, "kept"):
            self.kept = torch.empty_like(x)
            cuda_extension.run(self.kept, x, self.scale, self.shift)
        return self.kept
    """
    result = verify(session, write_candidate(tmp_path, forward=forward))
    assert result.correct is False
    assert [v.kind for v in result.violations] == [ViolationKind.STALE_OUTPUT]


def test_a_reused_output_buffer_is_memory_reuse(session: JudgeSession, tmp_path: Path) -> None:
    forward = """
        if not hasattr(self, "kept"):
            self.kept = torch.empty_like(x)
        cuda_extension.run(self.kept, x, self.scale, self.shift)
        return self.kept
    """
    result = session.judge(freeze(write_candidate(tmp_path, forward=forward)), Scope.FULL)
    assert [v.kind for v in result.violations] == [ViolationKind.MEMORY_REUSE]


def test_changed_inputs_are_a_violation(session: JudgeSession, tmp_path: Path) -> None:
    mutates = KERNEL.replace("const float v", "const_cast<float*>(x)[0] = x[0] + 1; const float v")
    mutates = mutates.replace("= x[0] + 1", "= (i == rows - 1 && j == width - 1) ? 7.0f : x[0]")
    result = verify(session, write_candidate(tmp_path, kernel=mutates))
    assert [v.kind for v in result.violations] == [ViolationKind.INPUT_MUTATION]


def test_work_after_return_is_late(session: JudgeSession, tmp_path: Path) -> None:
    late = (
        KERNEL.replace('extern "C" void run_kernel', "static void work")
        + """
#include <chrono>
#include <thread>
extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,
                           long rows, long width) {
    std::thread([=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        work(y, x, scale, shift, rows, width);
    }).detach();
}
"""
    )
    result = verify(session, write_candidate(tmp_path, kernel=late))
    assert result.correct is False


def test_a_crash_is_a_fault_and_the_next_candidate_is_fine(session: JudgeSession, tmp_path: Path) -> None:
    crash = KERNEL.replace("const float v", "if (i == 1) *(volatile int*)0 = 1; const float v")
    result = session.judge(freeze(write_candidate(tmp_path / "bad", kernel=crash)), Scope.FULL)
    assert (result.stage, result.correct, result.fault, result.reward) == (
        Stage.VERIFY,
        False,
        Fault.CRASH,
        -1,
    )
    assert result.infrastructure is None
    assert verify(session, write_candidate(tmp_path / "good")).correct is True


def test_an_endless_loop_times_out(tmp_path: Path) -> None:
    endless = KERNEL.replace("const float v", 'while (rows) { asm volatile(""); } const float v')
    config = JudgeConfig(device=Device.CPU, run_limit_s=5.0)
    with JudgeSession(TASK, config) as session:
        result = verify(session, write_candidate(tmp_path, kernel=endless))
    assert (result.correct, result.fault) == (False, Fault.TIME_OUT)


def test_exit_zero_is_no_pass(session: JudgeSession, tmp_path: Path) -> None:
    """Printing success and leaving with status 0 from C++."""
    kernel = "#include <cstdlib>\n" + KERNEL.replace(
        "const float v", "if (i == 0 && j == 0) exit(0); const float v"
    )
    result = verify(
        session, write_candidate(tmp_path, kernel=kernel, imports="print('[PASS] verify success')")
    )
    assert (result.correct, result.fault) == (False, Fault.CRASH)


def test_a_compile_error_names_file_and_line(session: JudgeSession, tmp_path: Path) -> None:
    result = session.judge(
        freeze(write_candidate(tmp_path, kernel=KERNEL.replace("const float v", "const flot v"))), Scope.FULL
    )
    assert (result.stage, result.compiled, result.correct, result.reward) == (Stage.BUILD, False, False, -1)
    assert "kernels/scaled_relu.cpp:6" in result.detail


def test_state_must_match(session: JudgeSession, tmp_path: Path) -> None:
    result = verify(session, write_candidate(tmp_path, init="self.extra = nn.Parameter(torch.ones(3))"))
    assert (result.stage, result.correct) == (Stage.LOAD, False)
    assert "extra" in result.detail


def test_prepare_runs_after_weights_change(session: JudgeSession, tmp_path: Path) -> None:
    folder = write_candidate(
        tmp_path,
        init="self.twice = None",
        methods="""
        def prepare(self):
            self.twice = (self.scale * 2).detach() / 2
        """,
        forward="""
        if self.twice is None:
            self.prepare()
        y = torch.empty_like(x)
        cuda_extension.run(y, x, self.twice, self.shift)
        return y
        """,
    )
    result = session.judge(freeze(folder), Scope.FULL)
    assert result.correct is True, result.detail
    assert result.prepare_us is not None


def test_lower_precision_is_named(tmp_path: Path) -> None:
    rough = KERNEL.replace(
        "const float v = x[i * width + j] * scale[j];",
        "union { float f; unsigned u; } r; r.f = x[i * width + j]; r.u = (r.u + 0x1000u) & 0xffffe000u;"
        " const float v = r.f * scale[j];",
    )
    folder = write_candidate(tmp_path, kernel=rough)
    with JudgeSession(TASK, CONFIG) as session:
        result = verify(session, folder)
    assert result.correct is False
    assert [v.kind for v in result.violations] == [ViolationKind.PRECISION]
    with JudgeSession(TASK, JudgeConfig(device=Device.CPU, track=Track.PAPER)) as session:
        assert verify(session, folder).correct is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("torch.relu(x * self.scale)", "torch.rand_like(x)"), "random"),
        (("torch.relu(x * self.scale) + self.shift", "3"), "no tensor"),
        (("import torch\n", "import torch\nimport absent_module\n"), "does not import"),
        (("torch.randn(64, 384)", "torch.randn(64, 385)"), "forward raised"),
        (("torch.randn(64, 384)", "torch.empty(1 << 45)"), "too large"),
    ],
    ids=["random", "no-tensor", "import", "shape", "too-large"],
)
def test_a_bad_reference_is_refused_in_one_line(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    task = Task(code=TASK.code.replace(*change), name="bad")
    with JudgeSession(task, CONFIG) as session, pytest.raises(TaskError, match=words) as caught:
        verify(session, write_candidate(tmp_path))
    assert "\n" not in str(caught.value) and caught.value.remedy
