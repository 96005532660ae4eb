"""The folder of an evaluation: what is written is read back; a kill inside a line costs that line only."""

import json

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.evals.metrics_records import EvalAttempt, EvalTask
from cuda_agent.evals.report.reading import read_run
from cuda_agent.evals.run_files import Arm, EvalFolder, EvalSettings, folder_name
from cuda_agent.result import Result, Stage, Times
from cuda_agent.task import Task

GOOD = Result(
    stage=Stage.DONE,
    correct=True,
    reward=2,
    candidate_us=Times.of([1.0, 2.0]),
    eager_us=Times.of([4.0]),
    max_rel_error=float("inf"),
)
SETTINGS = EvalSettings("set.parquet", "abc", "playbook", arm=Arm.SINGLE_TURN, samples=2, price_in=0.5)


@pytest.fixture
def folder(tmp_path):
    return EvalFolder.create(tmp_path / "eval", SETTINGS)


def test_everything_is_read_back(folder):
    task = EvalTask("level1/19", "19_ReLU", 1, 19, "hash", ("relu",), {"zeros": None}, {"eager_us": 2.0})
    attempt = EvalAttempt("level1/19", 1, "finished", best=GOOD, judged={"verify": 2}, judge_calls=2, turns=3)
    folder.add_task(task)
    folder.add_attempt(attempt)
    again = EvalFolder.open(folder.root)
    assert again.settings() == SETTINGS
    assert again.tasks() == (task,)
    [read] = again.attempts()
    assert read.best is not None and read.best.candidate_us == GOOD.candidate_us
    assert (read.last, read.ending, read.judged) == (None, "finished", {"verify": 2})
    report = read_run(folder.root)
    assert (report.tasks, report.attempts) == (again.tasks(), again.attempts())
    assert json.loads(folder.attempts_path.read_text())["best"]["max_rel_error"] is None


def test_a_later_line_takes_the_place_of_an_earlier(folder):
    folder.add_task(EvalTask("a"))
    folder.add_task(EvalTask("b"))
    folder.add_task(EvalTask("a", baselines={"eager_us": 1.0}))
    assert [(t.id, t.baselines) for t in folder.tasks()] == [("a", {"eager_us": 1.0}), ("b", None)]
    folder.add_attempt(EvalAttempt("a", infrastructure="endpoint down"))
    folder.add_attempt(EvalAttempt("a", ending="finished"))
    assert [a.infrastructure for a in folder.attempts()] == [None]


@pytest.mark.parametrize("torn", ['{"id": "b", "samp', '{"id": "b", "sample": 0}'])
def test_a_line_cut_by_a_kill_spoils_nothing_else(folder, torn):
    folder.add_task(EvalTask("a"))
    folder.add_attempt(EvalAttempt("a"))
    with folder.attempts_path.open("a") as file:
        file.write(torn)
    whole = ["b"] if torn.endswith("}") else []
    assert [a.id for a in folder.attempts()] == ["a", *whole]
    folder.add_attempt(EvalAttempt("c"))
    assert [a.id for a in folder.attempts()] == ["a", *whole, "c"]
    assert [a.id for a in read_run(folder.root).attempts] == ["a", *whole, "c"]


def test_references_lie_beside_it(folder):
    code = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    task = Task(code=code, name="19_ReLU", ops=("relu",), data_source="torch#1")
    folder.save_task("level1/19", task)
    loaded = folder.load_task("level1/19")
    assert (loaded.hash, loaded.name, loaded.ops) == (task.hash, task.name, task.ops)
    assert folder.attempt_folder("level1/19", 2) == folder.root / "attempts" / "level1-19" / "2"
    assert folder_name("../a b/c") == "-a-b-c"


def test_a_folder_that_holds_something_or_is_none_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="is not empty"):
        EvalFolder.create(folder.root, SETTINGS)
    with pytest.raises(UsageError, match="no run of cuda-agent eval"):
        EvalFolder.open(tmp_path)
    folder.settings_path.write_text('{"taskset": 1}')
    with pytest.raises(UsageError, match="does not fit"):
        folder.settings()
