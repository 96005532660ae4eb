"""The page as a document: what it holds, and that nothing hostile gets out of its place."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_eval import DEVICE, HOSTILE, write_eval

from cuda_agent.cli.main import run
from cuda_agent.evals.report.comparison import compare_runs, comparisons
from cuda_agent.evals.report.page import html_report
from cuda_agent.evals.report.reading import read_run, read_runs
from cuda_agent.evals.report.tables import analyse


class Document(HTMLParser):
    """Tags with attributes, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eval(tmp_path_factory.mktemp("page") / "made-up<b>", num_tasks=20, seed=4)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return html_report({folder: analyse(read_run(folder))})


def test_only_our_script_is_a_script(page: str) -> None:
    document = Document(page)
    kinds = [attributes.get("type") for attributes, _ in document.scripts]
    assert kinds == ["text/plain"] * 20 + [None]
    assert not [tag for tag, _ in document.tags if tag in ("img", "b", "iframe", "object")]
    assert not [a for _, attributes in document.tags for a in attributes if a.startswith("on")]


def test_nothing_is_fetched(page: str) -> None:
    document = Document(page)
    links = [v for _, attributes in document.tags for k, v in attributes.items() if k in ("src", "href")]
    assert links == ["data:,"]
    policy = next(a["content"] for t, a in document.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_details_come_back_whole(page: str, folder: Path) -> None:
    blobs = {a["id"]: text for a, text in Document(page).scripts if a.get("type") == "text/plain"}
    data = json.loads(gzip.decompress(base64.b64decode(blobs["d0-1"])))
    assert data["id"] == "level1/2"
    assert len(data["turns"]) == 5
    assert HOSTILE in data["turns"][0]["text"]
    assert set(data["files"]) == {"model_new.py", "kernels/k.cu"}
    assert "class Model" in data["reference"]


def test_every_run_names_its_contract(page: str) -> None:
    assert re.search(rf"Track matched, precision default, on {re.escape(DEVICE)}; [^<]*torch 0.0", page)


def test_attempts_without_a_folder_are_shown_without_one(tmp_path: Path) -> None:
    import shutil

    root = write_eval(tmp_path / "bare", num_tasks=3)
    shutil.rmtree(root / "attempts")
    shutil.rmtree(root / "tasks")
    document = Document(html_report({root: analyse(read_run(root))}))
    blob = next(text for a, text in document.scripts if a.get("type") == "text/plain")
    data = json.loads(gzip.decompress(base64.b64decode(blob)))
    assert (data["turns"], data["reference"], data["files"]) == (None, None, {})


def test_an_evaluation_just_begun_has_a_page(tmp_path: Path) -> None:
    root = write_eval(tmp_path / "begun", num_tasks=3)
    (root / "attempts.jsonl").write_text("")
    text = html_report({root: analyse(read_run(root))})
    assert "0 / 3" in text


def test_a_run_against_itself_differs_by_nothing(folder: Path) -> None:
    num_tasks, found = compare_runs(read_run(folder), read_run(folder))
    assert num_tasks > 10
    for difference in found:
        assert difference.change == (1.0 if difference.geometric else 0.0)
        interval = difference.interval
        assert interval is not None
        assert interval.low == pytest.approx(difference.change)
        assert interval.high == pytest.approx(difference.change)


def test_a_better_run_is_told_apart(tmp_path: Path) -> None:
    runs = [
        read_run(write_eval(tmp_path / name, num_tasks=60, seed=seed, skill=skill, turns=0))
        for name, seed, skill in (("weak", 1, 0.0), ("strong", 2, 0.6))
    ]
    found = {d.name: d for d in compare_runs(*runs)[1]}
    assert found["pass"].interval is not None
    assert found["pass"].interval.low > 0
    assert found["geomean_all_compile"].interval is not None
    assert found["geomean_all_compile"].interval.low > 1
    assert comparisons(runs)[0].title == "strong against weak"


def test_tracks_that_differ_are_said_not_to_compare(tmp_path: Path) -> None:
    runs = [read_run(write_eval(tmp_path / t, num_tasks=5, track=t)) for t in ("matched", "paper")]
    assert "not comparable as they stand: track" in comparisons(runs)[0].note


def test_agent_and_single_turn_are_compared_at_equal_budget(tmp_path: Path) -> None:
    agent = read_run(write_eval(tmp_path / "agent", num_tasks=8, seed=1))
    single = read_run(write_eval(tmp_path / "single", num_tasks=8, seed=2, samples=4, arm="single_turn"))
    titles = [c.title for c in comparisons([agent, single])]
    assert titles == [
        "single against agent",
        "agent against single answers of single at equal judge calls",
        "agent against single answers of single at equal tokens",
    ]


def test_the_command_writes_the_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert run(["report", str(folder), "--out", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>")
    assert "settings only" in capsys.readouterr().out
    assert run(["report", str(folder), "--out", str(tmp_path / "no" / "report.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    roots = [write_eval(tmp_path / place / "run", num_tasks=3, seed=n) for n, place in enumerate("ab")]
    assert [run.name for run in read_runs(roots).values()] == ["run (1)", "run (2)"]
