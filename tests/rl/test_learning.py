"""A policy learns to write kernels, and cannot seem to by accident: real verdicts, exact expected rewards.

48 kernels (4 tasks x 12) are judged by the whole private suite in the run of the test; no demonstrations are
given, the policy begins uniform. What it can expect is summed over all its answers, not sampled.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from kernel_choice import CHEAT, FAST, KERNELS, SLOW, WRITINGS, World, cpu_config, judge_all
from learner import Learner, Settings
from torch import Tensor

from cuda_agent.rl.batches import build

pytestmark = pytest.mark.slow

SEEDS = range(5)


def negated(outcomes: Tensor, _: torch.Generator) -> Tensor:
    return -outcomes


def shuffled(outcomes: Tensor, generator: torch.Generator) -> Tensor:
    return outcomes[torch.randperm(len(outcomes), generator=generator)]


@pytest.fixture(scope="module")
def world() -> World:
    started = time.monotonic()
    judged = judge_all(cpu_config())
    print(f"{len(judged.judged) * len(KERNELS)} kernels judged in {time.monotonic() - started:.0f} s")
    return judged


@pytest.fixture(scope="module")
def learned(world: World) -> list[tuple[float, float]]:
    """E[R] and P(R >= 2) after training, for each seed."""
    runs = [Learner(world, Settings(seed)).train() for seed in SEEDS]
    assert all(max(run.clipped) > 0 for run in runs)
    return [run.exact() for run in runs]


def test_the_world_is_as_designed(world: World) -> None:
    """Each task: a fast and a slow right kernel, wrong ones, refused ones; only reading tells which."""
    for task, row in enumerate(world.judged):
        verdicts = {kernel: judged for kernel, judged in zip(KERNELS, row, strict=True)}
        for (constant, writing), judged in verdicts.items():
            right = constant == task and WRITINGS[writing] != CHEAT
            assert judged.result.correct is right, judged.result
            assert bool(judged.result.violations) is (WRITINGS[writing] == CHEAT)
        fast, slow = (verdicts[task, WRITINGS.index(how)] for how in (FAST, SLOW))
        assert fast.result.candidate_us is not None and slow.result.candidate_us is not None
        assert slow.result.candidate_us.median > 2 * fast.result.candidate_us.median
        assert fast.reward >= 2 and slow.reward == 1
        shown = {judged.observation[-1] for judged in row if len(judged.observation) > 1}
        assert len(shown) == 1
    assert world.uniform < world.blind < world.best - 1


def test_the_policy_begins_uniform_and_its_value_is_exact(world: World) -> None:
    learner = Learner(world, Settings(0, episodes_per_task=500))
    expected, _ = learner.exact()
    assert expected == pytest.approx(world.uniform)
    outcomes = [rollout.outcome for rollout in build(learner.sample("v0")).rollouts]
    assert statistics.fmean(outcomes) == pytest.approx(expected, abs=0.15)


def test_it_learns_beyond_what_a_blind_policy_can(world: World, learned: list[tuple[float, float]]) -> None:
    print("E[R], P(R >= 2) by seed:", [(round(e, 3), round(p, 3)) for e, p in learned])
    for expected, reached in learned:
        assert expected >= world.blind + 0.5 * (world.best - world.blind)
        assert reached >= 0.6


def test_a_learning_rate_of_0_changes_no_bit(world: World) -> None:
    learner = Learner(world, Settings(0, steps=3, actor_lr=0.0, critic_lr=0.0))
    before = learner.weights()
    learner.train()
    assert all(torch.equal(a, b) for a, b in zip(before, learner.weights(), strict=True))


def test_negated_rewards_end_below_a_uniform_policy(world: World) -> None:
    for seed in SEEDS:
        assert Learner(world, Settings(seed, outcomes=negated)).train().exact()[0] < world.uniform


def test_shuffled_rewards_teach_nothing(world: World, learned: list[tuple[float, float]]) -> None:
    rise = statistics.median(expected for expected, _ in learned) - world.uniform
    changes = [
        abs(Learner(world, Settings(seed, outcomes=shuffled)).train().exact()[0] - world.uniform)
        for seed in SEEDS
    ]
    print(
        "|change| with shuffled rewards:", [round(change, 3) for change in changes], "rise:", round(rise, 3)
    )
    assert statistics.median(changes) <= 0.15 * rise
