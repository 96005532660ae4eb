"""Real candidates in answers of recorded ids, judged by the real judge of this machine, then learned from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernel_choice import _TASK, CHEAT, CONSTANTS, FAST, WRITINGS, cpu_config, snapshot
from small_models import small_model
from training_run import byte_tokenizer, config_of

from cuda_agent.agent.policies.options import ToolFormat
from cuda_agent.agent.policies.tokenspace import TokenSpace
from cuda_agent.agent.policy import Action, EpisodeContext, Message, ToolSpec
from cuda_agent.errors import PolicyError
from cuda_agent.pool.local import LocalPool, PoolConfig
from cuda_agent.rl.batches import Episode, Use, build
from cuda_agent.rl.episodes import Collector, Draw, Limits
from cuda_agent.rl.funnel import funnel
from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.ppo import PpoConfig
from cuda_agent.rl.rejudge import Asked, rejudge
from cuda_agent.rl.rollouts import Rollout
from cuda_agent.rl.scoring import JudgeScorer, PoolScorer, Scorer
from cuda_agent.rl.trainer import Trainer, TrainerOptions
from cuda_agent.rl.training_config import Level
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, TokenRecord, ToolCall, Usage

RIGHT = CONSTANTS.index(1.5)
TASK = Task(_TASK.format(constant=1.5), name="times_1.5")
TOKENIZER = byte_tokenizer()
SPACE = TokenSpace(TOKENIZER, ToolFormat.TEXT)


def answer(constant: int, writing: str) -> str:
    files = snapshot(constant, WRITINGS.index(writing)).files
    blocks = (f"{name}\n```\n{content.decode()}```\n" for name, content in files.items())
    return "\n".join(blocks)


BROKEN = answer(RIGHT, FAST).replace("float* y", "flaot* y")


class Written:
    """Says what it was given, turn by turn, recorded as ids of that text; a fault where it has no more."""

    name = "written"

    def __init__(self, answers: Sequence[str]) -> None:
        self._answers = list(answers)

    def start(self, context: EpisodeContext, history: Sequence[Message] = ()) -> None:
        pass

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        if not self._answers:
            raise PolicyError("the engine was lost")
        text = self._answers.pop(0)
        calls = (ToolCall(f"call{len(messages)}", "Bash", {"command": text}),) if tools and text else ()
        _, new = SPACE.context(messages, tools, stop_ids={TOKENIZER.eos_token_id})
        ids = (*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id)
        record = TokenRecord(tuple(new), ids, (-5.5,) * len(ids), "written")
        return Action(text, calls, tokens=record, usage=Usage(len(new), len(ids)))

    def close(self) -> None:
        pass


def collect(
    root: Path,
    answers: Sequence[Sequence[str]],
    *,
    scorer: Scorer,
    turns: int,
    level: Level = Level.FILE,
) -> list[Episode]:
    config = config_of(root, rollout={"parallel": 4, "level": level}, judge={"scorer": "judge"})
    draws = [Draw(TASK, n, root / "warmup" / "episodes" / f"{n:05d}") for n in range(len(answers))]
    return Collector(config, scorer).collect(
        draws, Limits(turns, 10_000), lambda seed: Written(answers[seed])
    )


@pytest.mark.slow
def test_single_turn_answers_are_judged_counted_and_learned_from(tmp_path: Path) -> None:
    wrong = (RIGHT + 1) % len(CONSTANTS)
    answers = [
        [answer(RIGHT, FAST)],
        [answer(wrong, FAST)],
        [answer(RIGHT, CHEAT)],
        [BROKEN],
        ["I would rather not."],
        [],
    ]
    scorer = JudgeScorer(cpu_config())
    try:
        episodes = collect(tmp_path, answers, scorer=scorer, turns=1)
        built = build(episodes, stop_ids=frozenset({TOKENIZER.eos_token_id}))
        assert [use for use in built.uses if use is not Use.TRAINED] == [Use.DROPPED_INFRASTRUCTURE]
        counted = funnel(episodes, built.uses)
        assert {k: v for k, v in counted.items() if v and k not in "123"} == {
            "dropped": 1,
            "no_block": 1,
            "build": 1,
            "wrong": 1,
            "cheat": 1,
        }
        assert built.rollouts[0].outcome >= 1
        assert [rollout.outcome for rollout in built.rollouts[1:]] == [-1.0] * 4

        started = time.monotonic()
        again = collect(tmp_path, [[]] * 6, scorer=scorer, turns=1)  # all are on disk: nobody is asked
        assert time.monotonic() - started < 2
        assert [e.result for e in again] == [e.result for e in episodes]

        rejudged_is_the_same(tmp_path, scorer)
    finally:
        scorer.close()
    an_update_moves_the_actor(built.rollouts)


def rejudged_is_the_same(root: Path, scorer: JudgeScorer) -> None:
    (root / "tasks").mkdir()
    (root / "tasks" / "times.py").write_text(TASK.code)
    (root / "config.json").write_text(json.dumps(config_of(root).to_dict()))
    rescored = rejudge(root, Asked(again=True), scorer=scorer)
    assert len(rescored) == 5
    assert all((one.after or 0) * (one.before or 0) > 0 for one in rescored)  # right stays right


def an_update_moves_the_actor(rollouts: Sequence[Rollout]) -> None:
    networks = Networks(small_model(vocabulary=len(TOKENIZER), positions=4096), NetworkOptions(rank=4))
    options = TrainerOptions(PpoConfig(actor_lambda=1.0), actor_lr=1e-3, max_tokens=4000)
    metrics = Trainer(networks, options).ppo_step(rollouts, seed=0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["actor_norm"] > 0
    assert metrics["tokens"] == sum(sum(rollout.acted) for rollout in rollouts)


@pytest.mark.slow
def test_several_turns_are_told_of_and_the_last_files_count(tmp_path: Path) -> None:
    answers = [
        [BROKEN, "kernels/chain.cpp" + answer(RIGHT, FAST).split("kernels/chain.cpp", 1)[1], "It is done."],
        [answer(RIGHT, FAST), BROKEN],
    ]
    scorer = JudgeScorer(cpu_config())
    try:
        mended, spoiled = collect(tmp_path, answers, scorer=scorer, turns=3)
    finally:
        scorer.close()
    assert mended.trajectory.ending is Ending.FINISHED
    told = mended.trajectory.turns[0].observations[0].text
    assert "does not compile" in told
    assert "flaot" in told
    assert "Correct." in mended.trajectory.turns[1].observations[0].text
    assert mended.result is not None
    assert mended.result.correct
    rollout = build([mended]).rollouts[0]
    assert len(set(rollout.turns)) == 3
    assert spoiled.trajectory.ending is Ending.POLICY_ERROR  # asked a third time, it was lost: dropped
    assert build([spoiled]).uses == (Use.DROPPED_INFRASTRUCTURE,)


@pytest.mark.slow
def test_episodes_of_the_agent_loop_are_judged_by_what_they_left(tmp_path: Path) -> None:
    files = snapshot(RIGHT, WRITINGS.index(FAST)).files
    writes = [f"cat > {name} <<'END'\n{content.decode()}\nEND" for name, content in files.items()]
    answers = [[*writes, ""], ["ls", ""]]
    scorer = PoolScorer(LocalPool(PoolConfig(devices=("cpu",))), cpu_config())
    try:
        worked, idle = collect(tmp_path, answers, scorer=scorer, turns=9, level=Level.WORKSPACE)
    finally:
        scorer.close()
    assert worked.trajectory.ending is Ending.FINISHED
    assert len(worked.trajectory.turns) == 4
    assert worked.result is not None
    assert worked.result.correct
    built = build([worked, idle])
    assert built.rollouts[0].outcome >= 1
    assert built.rollouts[1].outcome == -1  # it left the starter as it was
    assert built.rollouts[0].policy_versions == ("written",)
