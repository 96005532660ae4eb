"""Guards, funnel, curriculum, checkpoints, logs, and the loop that rolls back: without a judge."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model, small_rollouts
from training_run import config_of

from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import UsageError
from cuda_agent.pool.client import HttpPool
from cuda_agent.pool.lease import lease
from cuda_agent.result import Result, Stage, Times, Violation, ViolationKind
from cuda_agent.rl.batches import Built, Episode, Use
from cuda_agent.rl.checkpoints import Checkpoints, load_file, random_state, save_file, set_random_state
from cuda_agent.rl.curriculum import draw
from cuda_agent.rl.funnel import Came, came, compiler_errors, identical_share
from cuda_agent.rl.gate import Gate
from cuda_agent.rl.guards import Alarm, alarms, is_due
from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.prompts import MAX_OBSERVATION, observation
from cuda_agent.rl.run_log import RunLog
from cuda_agent.rl.scoring import Answer, FunctionScorer, JudgeScorer, PoolScorer, make_scorer
from cuda_agent.rl.stage_loop import Carried, Collapsed, StageLoop
from cuda_agent.rl.trainer import Trainer, TrainerOptions
from cuda_agent.rl.training_config import GuardConfig, JudgeTable
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, Trajectory
from cuda_agent.workspace.snapshot import Snapshot

GUARDS = GuardConfig()
CALM = {"entropy": 1.0, "reward": 1.0, "kl": 0.001, "explained_variance": 0.3, "drop_rate": 0.0}


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({"entropy": 1.51}, Alarm.ENTROPY_RISE),
        ({"entropy": 0.0001}, Alarm.ENTROPY_FLOOR),
        ({"ratio_outside": 0.06}, Alarm.RATIO),
        ({"kl": 0.2}, Alarm.KL),
        ({"gap": 0.03}, Alarm.GAP),
        ({"explained_variance": -1.5}, Alarm.EXPLAINED_VARIANCE),
        ({"length_clipped": 0.3}, Alarm.LENGTH_CLIPPED),
        ({"identical": 0.6}, Alarm.IDENTICAL),
        ({"drop_rate": 0.021}, Alarm.DROP_RATE),
        ({"reward": 0.4}, Alarm.REWARD_FALL),
        ({"policy_loss": math.nan}, Alarm.NOT_FINITE),
    ],
)
def test_each_alarm_is_raised_by_its_number_alone(change: dict[str, float], alarm: Alarm) -> None:
    history = [CALM] * 4
    assert alarms(history, GUARDS) == []
    assert alarms([*history, {**CALM, **change}], GUARDS) == [alarm]


def test_action_is_due_when_one_alarm_lasts() -> None:
    assert is_due([[Alarm.KL], [Alarm.GAP], [Alarm.KL]], 3) is None
    assert is_due([[Alarm.KL], [Alarm.KL, Alarm.GAP], [Alarm.KL]], 3) is Alarm.KL
    assert is_due([[Alarm.NOT_FINITE]], 3) is Alarm.NOT_FINITE


# -- the loop ----------------------------------------------------------------------------------------


def loop_in(folder: Path, **guards: Any) -> StageLoop:
    config = config_of(folder, guards=guards, run={"checkpoint_every": 1, "keep": 5})
    torch.manual_seed(0)
    trainer = Trainer(Networks(small_model(), NetworkOptions(rank=2)), TrainerOptions())
    return StageLoop(folder / "stage", trainer, config, lambda _: None)


def step_with_kl(from_step: int, seen: list[tuple[int, int]], *, cured: bool = False) -> Any:
    def step(number: int, carried: Carried) -> dict[str, float]:
        seen.append((number, carried.rollbacks))
        bad = number >= from_step and not (cured and carried.rollbacks)
        return {**CALM, "kl": 1.0 if bad else 0.0}

    return step


def test_rolls_back_to_before_the_alarm_and_draws_anew(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    loop_in(tmp_path, action="roll_back", patience=2).run(6, step_with_kl(3, seen, cured=True))
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (3, 1), (4, 1), (5, 1)]
    rows = RunLog(tmp_path / "stage").rows()
    assert [row["step"] for row in rows] == list(range(6))
    assert [row["rollbacks"] for row in rows] == [0, 0, 0, 1, 1, 1]


def test_stops_when_rolling_back_did_not_help(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with pytest.raises(Collapsed, match="kl for 2 steps"):
        loop_in(tmp_path, action="roll_back", patience=2).run(6, step_with_kl(3, seen))
    assert seen[-1] == (4, 1)
    assert not (tmp_path / "stage" / "done.json").exists()


def test_warns_and_goes_on_when_told_to(tmp_path: Path) -> None:
    loop_in(tmp_path, action="warn", patience=1).run(4, step_with_kl(1, []))
    assert (tmp_path / "stage" / "done.json").is_file()


def test_tensorboard_is_asked_for_by_name(tmp_path: Path) -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="needs the package tensorboard"):
            RunLog(tmp_path, tensorboard=True)
    else:
        RunLog(tmp_path, tensorboard=True).append({"step": 0, "reward": 1.0})
        assert list((tmp_path / "tensorboard").iterdir())


def test_log_is_cut_at_a_step_and_at_a_broken_line(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for number in range(3):
        log.append({"step": number, "kl": math.nan})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "k')
    assert [row["step"] for row in log.cut(2)] == [0, 1]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == {"step": 1, "kl": None}


# -- checkpoints -------------------------------------------------------------------------------------


def test_checkpoints_keep_the_last_and_bring_random_numbers_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    for step in range(4):
        checkpoints.save(step, {"x": torch.tensor([step])})
    drawn = torch.rand(3)
    assert checkpoints.steps() == [2, 3]
    assert int(checkpoints.load(3, device="cpu")["x"]) == 3
    assert torch.equal(torch.rand(3), drawn)
    checkpoints.drop_after(2)
    assert checkpoints.steps() == [2]


def test_cut_file_is_told_and_state_of_python_returns(tmp_path: Path) -> None:
    import random

    save_file(tmp_path / "a.pt", {"x": torch.ones(100)})
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match="cannot read"):
        load_file(tmp_path / "a.pt", device="cpu")
    state = random_state()
    first = random.random()
    set_random_state(state)
    assert random.random() == first


# -- what a step shows -------------------------------------------------------------------------------


def episode(result: Result | None) -> Episode:
    header = Header("task", "training", "cpu", "matched", "", "")
    return Episode(Trajectory(header, (), Ending.FINISHED), result)


def timed(us: float) -> Result:
    return Result(
        Stage.DONE,
        compiled=True,
        correct=True,
        candidate_us=Times.of([us]),
        eager_us=Times.of([10.0]),
        compile_us=Times.of([5.0]),
        candidate_hash="c",
    )


@pytest.mark.parametrize(
    ("result", "where"),
    [
        (Result(Stage.BUILD, correct=False, detail="no candidate was written. hm"), Came.NO_BLOCK),
        (Result(Stage.BUILD, correct=False, detail="error: x", candidate_hash="c"), Came.BUILD),
        (Result(Stage.LOAD, compiled=True, correct=False, candidate_hash="c"), Came.LOAD),
        (Result(Stage.VERIFY, compiled=True, correct=False, candidate_hash="c"), Came.WRONG),
        (
            Result(
                Stage.VERIFY,
                compiled=True,
                correct=False,
                violations=(Violation(ViolationKind.TORCH_COMPUTE, "relu"),),
                candidate_hash="c",
            ),
            Came.CHEAT,
        ),
        (timed(20.0), Came.ONE),
        (timed(7.0), Came.TWO),
        (timed(2.0), Came.THREE),
    ],
)
def test_funnel_names_how_far_a_candidate_came(result: Result, where: Came) -> None:
    assert came(episode(result), Use.TRAINED) is where
    assert came(episode(result), Use.DROPPED_TIME) is Came.DROPPED


def test_compiler_errors_are_clustered_without_names_and_numbers() -> None:
    details = ["k.cu:3:5: error: 'foo' was not declared", "a.cu:9:1: error: 'bar' was not declared"]
    episodes = [episode(Result(Stage.BUILD, correct=False, detail=text)) for text in details]
    assert compiler_errors(episodes) == {"NAME was not declared": 2}


def test_identical_answers_are_counted_within_a_task() -> None:
    first, second, *_ = small_rollouts()
    built = Built((first, first, second), (Use.TRAINED,) * 3, (1, 1, 1), 0)
    assert identical_share(built) == pytest.approx(1 / 3)


def test_curriculum_draws_by_pass_rate_and_repeats_exactly() -> None:
    tasks = [(f"t{n}", n) for n in range(300)]
    rates = {f"t{n}": (0.5, 0.0, 1.0)[n % 3] for n in range(300)}
    drawn = Counter(
        n % 3 for seed in range(40) for n in draw(tasks, 20, rates=rates, seed=seed, uniform=False)
    )
    assert [drawn[kind] / 800 for kind in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.06)
    assert draw(tasks, 9, rates=rates, seed=1, uniform=True) == draw(
        tasks, 9, rates=rates, seed=1, uniform=True
    )
    assert sorted(draw(tasks[:2], 4, rates={}, seed=0, uniform=False)) == [0, 0, 1, 1]


def test_observation_is_short_and_says_how_many_turns_are_left() -> None:
    long = Result(Stage.BUILD, correct=False, detail="error " * 1000)
    for result in (None, long, timed(2.0), Result(Stage.BUILD, infrastructure="lost")):
        text = observation(result, 3)
        assert len(text) <= MAX_OBSERVATION
        assert "Turns left: 3" in text
    assert "yours 2.0 us" in observation(timed(2.0), 1)


# -- the device --------------------------------------------------------------------------------------


def test_nobody_measures_while_episodes_generate_and_episodes_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    gate = Gate("cuda:7")
    measured = threading.Event()

    def measure() -> None:
        with lease("cuda:7"):
            measured.set()

    judge = threading.Thread(target=measure)
    with gate.generating():
        judge.start()
        with gate.generating():  # a second episode joins while the judge waits
            assert not measured.wait(0.2)
        assert not measured.is_set()
    judge.join(10)
    assert measured.is_set()
    with lease("cuda:7"):
        waiting = threading.Thread(target=lambda: gate.generating().__enter__())
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_pool_that_is_gone_is_no_verdict_on_the_candidate() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]  # nobody answers there once it is closed
    pool = HttpPool(f"http://127.0.0.1:{port}", "token", first_patience_s=0.1, patience_s=0.1)
    scorer = PoolScorer(pool, JudgeConfig(device=Device.CPU))
    candidate = Answer("", Snapshot({"model_new.py": b"class ModelNew: ..."}))
    result = scorer.score(Task("class Model: ...", name="t"), candidate, Scope.FULL)
    scorer.close()
    assert result.infrastructure
    assert result.correct is None


def test_scorers_by_name() -> None:
    assert isinstance(make_scorer(JudgeTable(scorer="judge")), JudgeScorer)
    assert isinstance(make_scorer(JudgeTable(scorer="cheap_reward:score")), FunctionScorer)
    with pytest.raises(UsageError, match=r"judge\.scorer is 'nowhere:score'"):
        make_scorer(JudgeTable(scorer="nowhere:score"))
