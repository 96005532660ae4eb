"""Episodes to rollouts: ids and masks as recorded, endings, rewards, drop rates; and the filter's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.judge.reward import RewardKind
from cuda_agent.result import Result, Stage, Times, Violation, ViolationKind
from cuda_agent.rl.batches import Episode, Use, build, read_episode, rollout_of, use_of
from cuda_agent.rl.rft_filter import Reason, Rules, filter_episodes, reasons_against
from cuda_agent.trajectory import (
    Ending,
    Header,
    Observation,
    TokenRecord,
    ToolCall,
    Trajectory,
    TrajectoryWriter,
    Turn,
)

HEADER = Header("task0", "local:model", "cpu", "matched", "system", "prompt")
FIRST = TokenRecord((1, 2), (3, 4), (-0.5, -0.25), "step0")
SECOND = TokenRecord((5,), (6, 9), (-1.0, -2.0), "step1")
GOOD = Result(
    stage=Stage.DONE,
    correct=True,
    candidate_us=Times.of([10.0]),
    eager_us=Times.of([40.0]),
    compile_us=Times.of([20.0]),
)
WRONG = Result(stage=Stage.VERIFY, correct=False)
CHEAT = Result(
    stage=Stage.BUILD, correct=False, violations=(Violation(ViolationKind.TORCH_COMPUTE, "aten::mul"),)
)


def episode(
    *records: TokenRecord | None, ending: Ending | None = Ending.FINISHED, result: Result | None = GOOD
) -> Episode:
    turns = tuple(Turn(index, "", tokens=record) for index, record in enumerate(records or (FIRST, SECOND)))
    return Episode(Trajectory(HEADER, turns, ending), result)


def test_a_rollout_is_what_was_recorded() -> None:
    rollout = rollout_of(episode().trajectory, 2.0)
    assert rollout.token_ids == (1, 2, 3, 4, 5, 6, 9)
    assert rollout.acted == (False, False, True, True, False, True, True)
    assert rollout.logprobs == (0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0)
    assert rollout.turns == (0, 0, 0, 0, 1, 1, 1)
    assert (rollout.task, rollout.outcome, rollout.policy_versions) == ("task0", 2.0, ("step0", "step1"))


@pytest.mark.parametrize(
    ("ending", "use"),
    [
        (Ending.FINISHED, Use.TRAINED),
        (Ending.TURN_LIMIT, Use.TRAINED),
        (Ending.CONTEXT_LIMIT, Use.TRAINED),
        (Ending.FORMAT_ERRORS, Use.TRAINED),
        (Ending.TIME_LIMIT, Use.DROPPED_TIME),
        (Ending.INTERRUPTED, Use.DROPPED_INTERRUPTED),
        (None, Use.DROPPED_INTERRUPTED),
        (Ending.SANDBOX_ERROR, Use.DROPPED_INFRASTRUCTURE),
        (Ending.POLICY_ERROR, Use.DROPPED_INFRASTRUCTURE),
    ],
)
def test_endings(ending: Ending | None, use: Use) -> None:
    assert use_of(episode(ending=ending)) is use


def test_every_ending_has_a_use() -> None:
    for ending in Ending:
        assert use_of(episode(ending=ending)) in Use


def test_faults_of_ours_and_foreign_turns_are_dropped() -> None:
    broken = Result(stage=Stage.BUILD, infrastructure="disk full")
    assert use_of(episode(result=broken)) is Use.DROPPED_INFRASTRUCTURE
    assert use_of(episode(result=None)) is Use.DROPPED_INFRASTRUCTURE
    assert use_of(episode(FIRST, None)) is Use.DROPPED_NO_TOKENS
    assert use_of(Episode(Trajectory(HEADER, (), Ending.FINISHED), GOOD)) is Use.DROPPED_NO_TOKENS


def test_rewards_counts_and_drop_rates() -> None:
    long = TokenRecord(tuple(range(2000)), (7,), (-0.1,), "step0")
    built = build(
        [
            episode(),
            episode(result=WRONG),
            episode(result=CHEAT),
            episode(long, ending=Ending.TIME_LIMIT),
            episode(long),
        ]
    )
    assert [rollout.outcome for rollout in built.rollouts] == [3.0, -1.0, -1.0, 3.0]
    assert built.counts() == {"trained": 4, "dropped_time": 1, "cheats": 1}
    assert built.num_tokens == (7, 7, 7, 2001, 2001)
    assert built.drop_rate() == 0.2
    assert built.drop_rate_by_length() == {"<=1024": 0.0, "<=4096": 0.5}
    raw = build([episode()], reward=RewardKind.RAW_SPEEDUP)
    assert raw.rollouts[0].outcome == 2.0


def test_a_cut_single_turn_answer_is_minus_1_whatever_was_judged() -> None:
    ended, cut = TokenRecord((1,), (3, 9), (-1.0, -1.0), "v"), TokenRecord((1,), (3, 4), (-1.0, -1.0), "v")
    built = build([episode(ended), episode(cut), episode(cut, result=None)], stop_ids=frozenset({9}))
    assert built.uses == (Use.TRAINED, Use.LENGTH_CLIPPED, Use.LENGTH_CLIPPED)
    assert [rollout.outcome for rollout in built.rollouts] == [3.0, -1.0, -1.0]


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path / "trajectory.jsonl", HEADER)
    for turn in episode().trajectory.turns:
        writer.turn(turn)
    writer.end(Ending.FINISHED)
    assert read_episode(tmp_path).result is None
    (tmp_path / "result.json").write_text(GOOD.to_json(), encoding="utf-8")
    read = read_episode(tmp_path)
    assert build([read]) == build([episode()])
    (tmp_path / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError):
        read_episode(tmp_path)


# -- the filter for rejection fine-tuning --------------------------------------------------------------


def acting(*steps: str, malformed: tuple[str, ...] = (), result: Result = GOOD) -> Episode:
    """An episode of one call a turn; a step is "command answer"."""
    turns = []
    for index, step in enumerate(steps):
        command, _, answer = step.partition(" ")
        call = ToolCall(f"call_{index}", "Bash", {"command": command})
        observation = Observation(call.id, answer)
        wrong = malformed if index == 0 else ()
        turns.append(Turn(index, "", (call,), (observation,), wrong, FIRST))
    return Episode(Trajectory(HEADER, tuple(turns), Ending.FINISHED), result)


@pytest.mark.parametrize(
    ("steps", "reasons"),
    [
        (("a 1", "b 1", "c 1"), []),
        (("a 1", "a 1"), []),
        (("a 1", "a 1", "a 1"), [Reason.REPEATED]),
        (("a 1", "a 2", "a 3"), []),  # the same action, but something changed
        (("a 1", "b 1", "a 1", "b 1"), []),  # too few actions for the share
        (("a 1", "b 1", "a 1", "b 1", "a 1", "b 1"), [Reason.REDUNDANT]),
        (("a 1", "b 1", "c 1", "d 1", "e 1", "a 1"), []),
        (("a 1",) * 6, [Reason.REPEATED, Reason.REDUNDANT]),
    ],
)
def test_loops(steps: tuple[str, ...], reasons: list[Reason]) -> None:
    assert reasons_against(acting(*steps)) == reasons


def test_filter_counts_first_and_all_reasons() -> None:
    episodes = [
        acting("a 1"),
        acting("a 1", result=WRONG),
        acting("a 1", malformed=("no such tool: Teleport",)),
        acting(*["a 1"] * 3, malformed=("not JSON",), result=CHEAT),
        Episode(Trajectory(HEADER, (), Ending.TIME_LIMIT), GOOD),
    ]
    filtered = filter_episodes(episodes)
    assert filtered.kept == (0,)
    assert filtered.first == {Reason.NOT_CORRECT: 2, Reason.SCHEMA: 1, Reason.NOT_TRAINABLE: 1}
    assert filtered.any == {
        Reason.NOT_CORRECT: 2,
        Reason.SCHEMA: 2,
        Reason.REPEATED: 1,
        Reason.NOT_TRAINABLE: 1,
    }
    lenient = filter_episodes(episodes, Rules(max_malformed=1))
    assert lenient.kept == (0, 2)
