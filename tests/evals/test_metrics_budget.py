"""Agent against best of n single answers at equal budget, against enumeration."""

from __future__ import annotations

import itertools
import math

import pytest

from cuda_agent.evals.metrics_budget import Budget, best_single, equal_budget
from cuda_agent.evals.metrics_records import EvalRun, EvalTask, attempt_of
from cuda_agent.evals.metrics_scored import score
from cuda_agent.result import Result, Stage, Times

WRONG = Result(stage=Stage.VERIFY, correct=False, reward=-1, candidate_hash="c")


def right(speedup: float) -> Result:
    return Result(
        stage=Stage.DONE,
        correct=True,
        reward=3 if speedup > 1.06 else 1,
        candidate_hash="c",
        candidate_us=Times.of([100.0]),
        eager_us=Times.of([100.0 * speedup]),
        compile_us=Times.of([100.0 * speedup]),
    )


def run(results: list[Result], *, calls: int, tokens: int = 0) -> EvalRun:
    lines = [
        {"id": "a", "sample": i, "best": r.to_dict(), "judge_calls": calls, "completion_tokens": tokens}
        for i, r in enumerate(results)
    ]
    return EvalRun("x", tasks=(EvalTask("a"),), attempts=tuple(map(attempt_of, lines)))


ANSWERS = [right(2.0), WRONG, right(0.5), WRONG, right(1.2)]


@pytest.mark.parametrize("k", range(1, 6))
def test_best_single_is_the_mean_over_all_draws(k: int) -> None:
    single = run(ANSWERS, calls=1)
    group = score(single, single.tasks)[0]
    logs, passes, rewards = [], [], []
    for chosen in itertools.combinations(ANSWERS, k):
        speeds = [r.speedup("compile") for r in chosen if r.correct]
        logs.append(math.log(max(s for s in speeds if s)) if speeds else 0.0)
        passes.append(any(s and s > 1.06 for s in speeds))
        rewards.append(max(r.reward or 0 for r in chosen))
    assert best_single("geomean_all_compile", group, k) == pytest.approx(sum(logs) / len(logs))
    assert best_single("faster5_compile", group, k) == pytest.approx(sum(passes) / len(passes))
    assert best_single("reward", group, k) == pytest.approx(sum(rewards) / len(rewards))


def test_the_agents_budget_buys_single_answers() -> None:
    found = equal_budget(run([right(1.5)], calls=7), run(ANSWERS, calls=3), Budget.JUDGE_CALLS)
    assert (found.num_tasks, found.mean_k, found.num_short) == (1, 2.0, 0)
    by_name = {d.name: d for d in found.differences}
    # Of ten pairs only the one of both wrong answers fails.
    assert by_name["pass"].first == pytest.approx(0.9)
    assert by_name["pass"].second == 1.0
    assert by_name["pass"].change == pytest.approx(0.1)
    assert by_name["geomean_all_compile"].second == pytest.approx(1.5)


def test_too_few_single_answers_are_told() -> None:
    found = equal_budget(run([right(1.5)], calls=100), run(ANSWERS, calls=1), Budget.JUDGE_CALLS)
    assert (found.mean_k, found.num_short) == (5.0, 1)


def test_an_unknown_budget_compares_nothing() -> None:
    assert equal_budget(run([right(1.5)], calls=7), run(ANSWERS, calls=3), Budget.TOKENS).num_tasks == 0
    priced = equal_budget(
        run([right(1.5)], calls=7, tokens=9), run(ANSWERS, calls=3, tokens=3), Budget.TOKENS
    )
    assert (priced.num_tasks, priced.mean_k) == (1, 3.0)
