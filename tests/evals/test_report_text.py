"""``cuda-agent report`` on a small evaluation's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.result import Result, Stage, Times

GOOD = Result(
    stage=Stage.DONE,
    correct=True,
    reward=3,
    candidate_hash="c",
    device="Synthetic GPU",
    versions={"torch": "0.0"},
    candidate_us=Times.of([50.0]),
    eager_us=Times.of([100.0]),
    compile_us=Times.of([75.0]),
)
WRONG = Result(stage=Stage.VERIFY, correct=False, reward=-1, candidate_hash="c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two levels, one degenerate task, one attempt cut off by a kill."""
    baselines = {"eager_us": 100.0, "compile_us": 80.0, "settings_only_us": 40.0, "max_autotune_us": 70.0}
    tasks = [
        {"id": "level1/1", "level": 1, "degenerate": {"zeros": False}, "baselines": baselines},
        {"id": "level2/1", "level": 2, "degenerate": {"zeros": True}, "baselines": baselines},
    ]
    attempts = [
        {"id": "level1/1", "sample": 0, "ending": "finished", "best": GOOD.to_dict(), "last": GOOD.to_dict()},
        {
            "id": "level2/1",
            "sample": 0,
            "ending": "finished",
            "best": WRONG.to_dict(),
            "last": WRONG.to_dict(),
        },
    ]
    root = tmp_path / "run"
    root.mkdir()
    (root / "eval.json").write_text(
        json.dumps(
            {"taskset": "t", "taskset_hash": "0", "policy": "playbook", "device": None, "track": "matched"}
        )
    )
    (root / "tasks.jsonl").write_text("".join(json.dumps(t) + "\n" for t in tasks))
    (root / "attempts.jsonl").write_text("".join(json.dumps(a) + "\n" for a in attempts) + '{"id": "level')
    return root


def test_text_names_contract_and_baselines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    for words in ("track matched", "device Synthetic GPU", "torch 0.0", "settings only", "max-autotune"):
        assert words in text
    assert "1 correct, 1 wrong, 0 cheat" in text


def test_json_has_every_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)["runs"][0]["sections"]
    best = {(s["subset"], s["kept"]): s for s in sections if s["pick"] == "best"}
    assert best["overall", "all tasks"]["summary"]["estimates"]["pass"]["value"] == 0.5
    assert best["overall", "without degenerate"]["summary"]["estimates"]["pass"]["value"] == 1.0
    assert best["level 1", "all tasks"]["summary"]["estimates"]["geomean_compile"]["value"] == 1.5
    assert best["overall", "all tasks"]["lines"][0]["geomean_compile"] == pytest.approx(2.0)


def test_a_folder_that_is_no_evaluation_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert "is no run of cuda-agent eval" in capsys.readouterr().err
