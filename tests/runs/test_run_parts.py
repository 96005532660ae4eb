"""Parts of a run: folder, ledger of versions, summary."""

import dataclasses

import pytest

from cuda_agent.config import EpisodeConfig, JudgeConfig, Scope
from cuda_agent.errors import InfrastructureError, UsageError
from cuda_agent.result import Result, Stage, Times, Violation, ViolationKind
from cuda_agent.runs.ledger import Ledger
from cuda_agent.runs.run_folder import RunFolder, write_text
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import Outcome, format_times, reasons, summary_text, table_row, verdict
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending
from cuda_agent.workspace.snapshot import Snapshot

TASK = Task(code="Model = get_inputs = get_init_inputs = None\n", name="t")
PASSED = Result(stage=Stage.VERIFY, compiled=True, correct=True)
FAILED = Result(stage=Stage.VERIFY, compiled=True, correct=False)
BUILT = Result(stage=Stage.LOAD, compiled=True)


def version(text):
    return Snapshot({"model_new.py": text.encode()})


def timed(us):
    return Result(stage=Stage.PROFILE, compiled=True, correct=True, candidate_us=Times.of([us]))


def test_the_fastest_verified_version_is_best(tmp_path):
    ledger = Ledger(tmp_path)
    slow, fast, fastest, wrong = (version(name) for name in ("slow", "fast", "fastest", "wrong"))
    for snapshot, us in ((slow, 30.0), (fast, 20.0), (wrong, 1.0), (fastest, 10.0)):
        ledger.record(Scope.BUILD, snapshot, BUILT)
        ledger.record(Scope.VERIFY, snapshot, FAILED if snapshot is wrong else PASSED)
        ledger.record(Scope.PROFILE, snapshot, timed(us))
    assert ledger.best().snapshot == fastest
    assert len(ledger) == 4
    ledger.record(Scope.VERIFY, fastest, FAILED)  # it failed once: it is not trusted again
    ledger.record(Scope.VERIFY, fastest, PASSED)
    assert ledger.best().snapshot == fast


def test_a_time_without_a_verification_counts_for_nothing(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.record(Scope.PROFILE, version("a"), timed(1.0))
    assert ledger.best() is None
    assert ledger.verified() == []


def test_untimed_versions_rank_behind_timed_ones_latest_first(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.record(Scope.VERIFY, version("a"), PASSED)
    ledger.record(Scope.VERIFY, version("b"), PASSED)
    assert ledger.best().snapshot == version("b")
    ledger.record(Scope.PROFILE, version("a"), timed(5.0))
    assert ledger.best().snapshot == version("a")


def test_our_own_failure_is_no_verdict(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.record(Scope.VERIFY, version("a"), Result(stage=Stage.BUILD, infrastructure="disk full"))
    assert ledger.get(version("a")).verified is None


def test_the_ledger_survives_its_process(tmp_path):
    ledger = Ledger(tmp_path)
    for name, us in (("a", 3.0), ("b", 2.0)):
        ledger.record(Scope.VERIFY, version(name), PASSED)
        ledger.record(Scope.PROFILE, version(name), timed(us))
    again = Ledger.load(tmp_path)
    assert again.best().snapshot == version("b")
    assert again.best().time_us == 2.0
    # Files changed behind our back, and a line cut by a kill, cost that version only.
    (tmp_path / version("b").hash / "model_new.py").write_text("other")
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"hash": "cut')
    assert Ledger.load(tmp_path).best().snapshot == version("a")
    assert len(Ledger.load(tmp_path / "none")) == 0


def test_a_full_disk_keeps_versions_in_memory(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    ledger = Ledger(blocked)
    ledger.record(Scope.VERIFY, version("a"), PASSED)
    assert ledger.best().snapshot == version("a")


def test_a_run_folder_is_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = RunFolder.create(None, "t"), None
    first.save_task(TASK)
    second = RunFolder.create(None, "t")
    assert (first.root.name, second.root.name) == ("t", "t-2")
    with pytest.raises(UsageError, match="not empty"):
        RunFolder.create(first.root, "t")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        RunFolder.create(tmp_path / "file", "t")


def test_only_a_run_is_offered_to_be_resumed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(UsageError) as caught:
        RunFolder.create(tmp_path / "mine", "t")
    assert "--resume" not in str(caught.value)
    RunFolder.create(tmp_path / "run", "t").save_settings({})
    with pytest.raises(UsageError, match="or continue it with --resume"):
        RunFolder.create(tmp_path / "run", "t")


def test_settings_task_and_result_come_back(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "t")
    with pytest.raises(UsageError, match="no run"):
        RunFolder.open(folder.root)
    settings = OptimizeSettings(
        policy="chat:m",
        policy_options={"temperature": 0.5},
        judge=JudgeConfig(track="paper"),
        episode=EpisodeConfig(max_turns=7),
    )
    folder.save_task(TASK)
    folder.save_settings(settings.to_dict())
    folder.save_result(timed(5.0))
    again = RunFolder.open(folder.root)
    assert OptimizeSettings.from_dict(again.load_settings()) == settings
    assert again.load_task().hash == TASK.hash
    assert again.load_result() == timed(5.0)
    with pytest.raises(UsageError, match="does not fit"):
        OptimizeSettings.from_dict({**settings.to_dict(), "judge": {"colour": "red"}})


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    write_text(path, "old")
    path.with_name(".x.part").mkdir()
    with pytest.raises(InfrastructureError, match="cannot write") as caught:
        write_text(path, "new")
    assert caught.value.remedy
    assert path.read_text() == "old"


def test_times_read_as_numbers_with_units():
    assert format_times(Times(1234.5, 1000.0, 2e6, (1.0,))) == "1.23 ms [1 ms, 2 s]"
    assert format_times(Times(12.3456, 9.0, 999.4, (1.0,))) == "12.3 us [9 us, 999 us]"
    assert format_times(None) == "-"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "not judged"),
        (dataclasses.replace(timed(1.0), stage=Stage.DONE), "verified"),
        (Result(stage=Stage.VERIFY, correct=False, candidate_hash="x"), "wrong at verify"),
        (Result(stage=Stage.BUILD, correct=False), "no candidate"),
        (Result(stage=Stage.BUILD, infrastructure="disk"), "no verdict (our side failed)"),
        (
            Result(
                stage=Stage.VERIFY,
                correct=False,
                candidate_hash="x",
                violations=(Violation(ViolationKind.TORCH_COMPUTE, "aten::mm"),),
            ),
            "refused: torch_compute",
        ),
    ],
)
def test_verdicts_in_words(result, words):
    assert verdict(result) == words
    assert table_row("t", result)[6] == words


def test_a_reason_is_told_once():
    why = Violation(ViolationKind.TIME_MANIPULATION, "less than half of the time")
    result = Result(
        stage=Stage.PROFILE, correct=False, violations=(why,), detail="less than half of the time\nmore"
    )
    assert reasons(result) == ["time_manipulation: less than half of the time", "more"]


def test_the_summary_says_what_happened(tmp_path):
    folder = RunFolder(tmp_path)
    folder.candidate.mkdir()
    result = Result(
        stage=Stage.DONE,
        compiled=True,
        correct=True,
        reward=3,
        candidate_us=Times.of([10.0, 10.0]),
        eager_us=Times.of([30.0]),
        compile_us=Times.of([20.0]),
        candidate_hash="x",
        notes=("a note",),
        inputs=(("float32[8,64]",),),
        confidence={"eager": (2.9, 3.1)},
    )
    outcome = Outcome(folder, TASK, Ending.TURN_LIMIT, "200 turns", result, 200, 5, 3, "my last words")
    text = summary_text(outcome)
    for words in (
        "3.00x",
        "2.00x",
        "verified",
        "turn_limit (200 turns)",
        "a note",
        "float32[8,64]",
        "my last words",
    ):
        assert words in text
    assert "2.900 to 3.100" in text
    assert "`candidate/`" in text and "`trajectory.jsonl`" not in text
    assert f"cuda_agent.load({str(tmp_path)!r})" in text and "Not faster" not in text
    slower = dataclasses.replace(result, candidate_us=Times.of([31.0]))
    assert "Not faster than eager" in summary_text(dataclasses.replace(outcome, result=slower))
