"""Metrics of small evaluations worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cuda_agent.evals.metrics import Summary, summarise
from cuda_agent.evals.metrics_records import (
    Baseline,
    EvalRun,
    Pick,
    Verdict,
    attempt_of,
    latest_attempts,
    task_of,
)
from cuda_agent.evals.metrics_scored import score
from cuda_agent.result import Result, Stage, Times, Violation, ViolationKind


def verdict(eager: float, compiled: float | None, *, candidate: float = 100.0, **more: Any) -> Result:
    """A correct result with these speed-ups."""
    return Result(
        stage=Stage.DONE,
        correct=True,
        reward=more.pop("reward", 1),
        candidate_hash="c",
        candidate_us=Times.of([candidate]),
        eager_us=Times.of([candidate * eager]),
        compile_us=None if compiled is None else Times.of([candidate * compiled]),
        **more,
    )


WRONG = Result(stage=Stage.VERIFY, correct=False, reward=-1, candidate_hash="c")
CHEAT = Result(
    stage=Stage.VERIFY,
    correct=False,
    reward=-1,
    candidate_hash="c",
    violations=(Violation(ViolationKind.TAMPERING, "rebinds torch.equal"),),
)
NOTHING = Result(stage=Stage.BUILD, correct=False, reward=-1)
LOST = Result(stage=Stage.BUILD, infrastructure="the worker was lost")


def evaluation(*tasks: list[Result | None], baselines: dict[str, float] | None = None) -> EvalRun:
    """An evaluation with these verdicts, as it would be read from its files."""
    lines = [
        {"id": f"level1/{i}", "sample": n, "ending": "finished", "best": r and r.to_dict(), "turns": 2}
        for i, group in enumerate(tasks)
        for n, r in enumerate(group)
    ]
    rows = [{"id": f"level1/{i}", "level": 1, "baselines": baselines} for i in range(len(tasks))]
    return EvalRun("x", tasks=tuple(map(task_of, rows)), attempts=tuple(map(attempt_of, lines)))


def summary(run: EvalRun, pick: Pick = Pick.BEST) -> Summary:
    return summarise(score(run, run.tasks, pick=pick))


def test_rates_and_means_by_hand() -> None:
    run = evaluation([verdict(4.0, 1.0)], [verdict(1.0, 0.5)], [WRONG], [verdict(1.04, None)])
    values = {name: e.value for name, e in summary(run).estimates.items()}
    assert values["pass"] == 0.75
    assert values["faster_eager"] == 0.5  # 4 and 1.04, not 1
    assert values["faster5_eager"] == 0.25
    assert values["faster_compile"] == 0.0
    assert values["geomean_eager"] == pytest.approx((4 * 1 * 1.04) ** (1 / 3))
    assert values["geomean_all_eager"] == pytest.approx((4 * 1 * 1 * 1.04) ** (1 / 4))
    # Not timed against torch.compile: in neither mean.
    assert values["geomean_compile"] == pytest.approx(math.sqrt(0.5))
    assert values["geomean_all_compile"] == pytest.approx(0.5 ** (1 / 3))


def test_infrastructure_is_no_failure_and_is_shown() -> None:
    found = summary(evaluation([verdict(2.0, 2.0)], [LOST], [None, WRONG], [CHEAT], [NOTHING]))
    assert found.counts == {
        Verdict.CORRECT: 1,
        Verdict.WRONG: 1,
        Verdict.CHEAT: 1,
        Verdict.NO_CANDIDATE: 2,
        Verdict.INFRASTRUCTURE: 1,
        Verdict.TASK_ERROR: 0,
    }
    assert (found.num_tasks, found.num_scored) == (5, 4)
    assert found.estimates["pass"].value == 0.25


def test_tasks_weigh_the_same_whatever_their_samples() -> None:
    found = summary(evaluation([verdict(2.0, 2.0), WRONG, WRONG, WRONG], [verdict(8.0, 8.0)]))
    assert found.estimates["pass"].value == pytest.approx((0.25 + 1) / 2)
    assert found.estimates["geomean_eager"].value == pytest.approx(4.0)


def test_pass_and_reward_at_k() -> None:
    good = verdict(2.0, 2.0, reward=3)
    found = summary(evaluation([good, WRONG, WRONG], [WRONG, WRONG, WRONG]))
    assert found.pass_at_k[1].value == pytest.approx((1 / 3) / 2)
    assert found.pass_at_k[2].value == pytest.approx((2 / 3) / 2)
    assert found.pass_at_k[3].value == pytest.approx(0.5)
    assert found.reward_at_k[2].value == pytest.approx(((2 / 3 * 3 - 1 / 3) - 1) / 2)


def test_a_single_sample_has_no_at_k() -> None:
    assert summary(evaluation([WRONG])).pass_at_k == {}


def test_surely_faster_needs_the_lower_bound_past_the_line() -> None:
    sure = verdict(1.2, 1.2, confidence={"eager": [1.1, 1.3], "compile": [0.99, 1.3]})
    unsure = verdict(1.2, 1.2, confidence={"eager": [1.01, 1.3], "compile": [1.01, 1.3]})
    unknown = verdict(1.2, 1.2)
    values = {n: e.value for n, e in summary(evaluation([sure], [unsure], [unknown])).estimates.items()}
    assert values["surely_eager"] == pytest.approx(2 / 3)
    assert values["surely5_eager"] == pytest.approx(1 / 3)
    assert values["surely_compile"] == pytest.approx(1 / 3)


def test_max_autotune_is_rescaled_by_eager() -> None:
    # Then: max-autotune took half of eager. Now: 3x over eager, so 1.5x over max-autotune.
    run = evaluation([verdict(3.0, 2.0)], baselines={"eager_us": 80.0, "max_autotune_us": 40.0})
    assert summary(run).estimates["geomean_max_autotune"].value == pytest.approx(1.5)


def test_share_of_the_floor() -> None:
    run = evaluation([verdict(3.0, 2.0, candidate=50.0)], baselines={"floor_us": 40.0})
    assert summary(run).estimates["roofline"].value == pytest.approx(0.8)


def test_kernel_time_is_a_metric_of_its_own() -> None:
    result = verdict(2.0, 2.0, kernel_us=Times.of([10.0]))
    # Eager takes 200 us now and took 100 us then: its 25 us of kernels then are 50 us now.
    run = evaluation([result], baselines={"eager_us": 100.0, "eager_kernel_us": 25.0})
    found = summarise(score(run, run.tasks, kernel_time=True)).estimates
    assert found["geomean_eager"].value == pytest.approx(5.0)
    assert found["geomean_compile"].value is None


def test_fast_p_curve() -> None:
    curve = dict(summary(evaluation([verdict(4.0, 1.2)], [WRONG])).fast_p[Baseline.COMPILE])
    assert (curve[0.0], curve[1.0], curve[1.25]) == (0.5, 0.5, 0.0)


def test_last_of_trajectory_is_apart() -> None:
    line = {"id": "a", "best": verdict(2.0, 2.0).to_dict(), "last": WRONG.to_dict()}
    run = EvalRun("x", tasks=(task_of({"id": "a"}),), attempts=(attempt_of(line),))
    assert summary(run).estimates["pass"].value == 1.0
    assert summary(run, Pick.LAST).estimates["pass"].value == 0.0


def test_a_repeated_attempt_replaces_the_earlier() -> None:
    lines = [attempt_of({"id": "a", "turns": t}) for t in (1, 2)]
    assert [a.turns for a in latest_attempts(lines)] == [2]


def test_an_evaluation_without_attempts_has_no_numbers() -> None:
    found = summarise(score(EvalRun("x", tasks=(task_of({"id": "a"}),)), [task_of({"id": "a"})]))
    assert found.num_scored == 0
    assert all(e.value is None for e in found.estimates.values())


def test_what_was_not_measured_is_not_told_as_zero() -> None:
    found = summary(evaluation([verdict(2.0, 2.0)], [WRONG])).estimates
    # No task has max-autotune; no result has an interval.
    assert found["faster_max_autotune"].value is None
    assert found["surely_compile"].value is None
    half = evaluation([verdict(2.0, 2.0)], [WRONG])
    with_one = EvalRun(
        "x",
        tasks=(
            task_of({"id": "level1/0", "baselines": {"eager_us": 10.0, "max_autotune_us": 9.0}}),
            half.tasks[1],
        ),
        attempts=half.attempts,
    )
    # Only the task on which it was measured is in the share.
    assert summary(with_one).estimates["faster_max_autotune"].value == 1.0


def test_a_compile_that_fails_beside_a_timed_eager_is_not_beaten() -> None:
    found = summary(evaluation([verdict(2.0, None)], [verdict(2.0, 2.0)])).estimates
    assert found["faster_compile"].value == 0.5


def test_a_task_that_cannot_be_judged_is_out_and_shown() -> None:
    line = {"id": "a", "ending": None, "task_error": "eager fails"}
    run = EvalRun("x", tasks=(task_of({"id": "a"}),), attempts=(attempt_of(line),))
    assert (summary(run).num_scored, summary(run).counts[Verdict.TASK_ERROR]) == (0, 1)
