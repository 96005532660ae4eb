"""The stages over files: resume, shards of two processes, merge, export, card, audit."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import handmade
import pytest

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.compose.mix import BALANCED
from cuda_agent.synthesis.compose.random_composer import RandomComposer
from cuda_agent.synthesis.dedupe.selection import Caps
from cuda_agent.synthesis.export.card import Making, card
from cuda_agent.synthesis.export.pictures import histogram, log_bins
from cuda_agent.synthesis.export.table import COLUMNS, Origin, write_parquet
from cuda_agent.synthesis.jsonl import Appender, read_rows
from cuda_agent.synthesis.record import TaskRecord
from cuda_agent.synthesis.seed import write_seeds
from cuda_agent.synthesis.stages.audit_stage import records_of
from cuda_agent.synthesis.stages.compose_stage import composed, run_compose
from cuda_agent.synthesis.stages.dedupe_stage import run_dedupe
from cuda_agent.synthesis.stages.filter_stage import Tally
from cuda_agent.synthesis.stages.folder import Shard, SynthFolder, numbers_in, read_numbered
from cuda_agent.synthesis.target import CPU
from cuda_agent.tasks.taskset import load_taskset

pytest.importorskip("pyarrow")


def composer() -> RandomComposer:
    """Of the seeds by hand."""
    return RandomComposer(handmade.SEEDS, BALANCED, CPU)


def graph_of(number: int) -> list[object]:
    """A made-up graph of its own."""
    return [["relu", [["input", 0]], [["n", str(number)]], [[2, "float"]], [64]]]


def accept(folder: SynthFolder, numbers: range) -> None:
    """As if the filters had accepted composed tasks."""
    tasks = dict(composed(composer(), folder, Shard(), count=max(numbers) + 1))
    with Appender(folder.accepted) as file:
        for number in numbers:
            facts = {"abstract": {"graph": graph_of(number), "input_bytes": 4}, "eager": {"median_us": 2e3}}
            record = replace(tasks[number], facts=facts)
            file.append({"number": number, "record": record.to_dict(), "margins": {"no-idle-op": 4.5}})


def test_composition_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, parts = SynthFolder(tmp_path / "whole"), SynthFolder(tmp_path / "parts")
    run_compose(composer(), whole, Shard(), count=12)
    assert run_compose(composer(), parts, Shard(), count=5) == 5
    with parts.composed.open("ab") as file:
        file.write(b'{"number": 99, "rec')  # a killed run
    assert run_compose(composer(), parts, Shard(), count=12) == 7
    assert list(read_numbered(parts.composed)) == list(read_numbered(whole.composed))


def test_shards_compose_what_one_process_would(tmp_path: Path) -> None:
    whole = SynthFolder(tmp_path / "whole")
    run_compose(composer(), whole, Shard(), count=10)
    parts = [SynthFolder(tmp_path / str(index)) for index in range(2)]
    for index, part in enumerate(parts):
        run_compose(composer(), part, Shard(index, 2), count=5)
    together = {n: r.id for part in parts for n, r in read_numbered(part.composed)}
    first = {n: r.id for n, r in read_numbered(whole.composed)}
    assert {n: i for n, i in together.items() if n in first} == first


@pytest.mark.parametrize("text", ["3", "2/2", "a/b", "-1/2"])
def test_bad_shards_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no shard"):
        Shard.parse(text)


def test_merging_does_not_depend_on_the_order_of_folders(tmp_path: Path) -> None:
    parts = [SynthFolder(tmp_path / "a"), SynthFolder(tmp_path / "b")]
    accept(parts[0], range(0, 6))
    accept(parts[1], range(4, 10))
    caps = Caps(family=1.0, headroom_share=0.0, per_cluster=100)
    one = run_dedupe(parts, SynthFolder(tmp_path / "one"), (), caps)
    two = run_dedupe(parts[::-1], SynthFolder(tmp_path / "two"), (), caps)
    assert {r.id for r in one.kept} == {r.id for r in two.kept}
    assert one.reasons["the same source"] == 2
    assert (
        Counter(r.facts["labels"]["split"] for r in one.kept).total()
        == len(one.kept)
        == 10 - sum(n for why, n in one.reasons.items() if why != "the same source")
    )


def test_the_file_is_a_taskset_and_can_be_audited(tmp_path: Path) -> None:
    folder = SynthFolder(tmp_path)
    accept(folder, range(0, 8))
    kept = run_dedupe([folder], folder, (), Caps(family=1.0, per_cluster=100)).kept
    path = tmp_path / "tasks.parquet"
    write_parquet(path, kept, Origin("some device", {"torch": "2"}))
    entries = load_taskset(str(path))
    assert {e.task.code for e in entries} == {r.code for r in kept}
    assert {e.task.data_source for e in entries} == {r.data_source for r in kept}
    assert set(entries[0].columns) >= {name for name, _ in COLUMNS} - {"code", "ops", "data_source"}
    again = {record.id: record for _, record in records_of(str(path))}
    for record in kept:
        assert again[record.id].sizes == record.sizes
        assert again[record.id].ops == record.ops
        assert again[record.id].dtype == record.dtype


def test_the_public_form_is_read(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    codes = [r.code for _, r in composed(composer(), SynthFolder(tmp_path), Shard(), count=3)]
    rows = {"code": codes, "ops": ['["torch.exp", "nn.Conv2d"]'] * 3, "data_source": ["torch#2"] * 3}
    parquet.write_table(Table.from_pydict(rows), tmp_path / "public.parquet")
    found = [record for _, record in records_of(str(tmp_path / "public.parquet"))]
    assert [record.code for record in found] == codes
    assert found[0].ops == ("torch.exp", "nn.Conv2d")
    assert found[0].sizes == {}


def test_the_card_counts_and_its_pictures_are_svg() -> None:
    records = [TaskRecord("# a", ("nn.Conv2d", "F.gelu"), "torch#2", facts={"eager": {"median_us": 2500.0}})]
    text = card(records, Making(refused={"finite": 3}, num_filtered=10, target="cpu"))
    assert "| finite | 10 | 3 |" in text
    assert "| not-constant | 7 | 0 |" in text
    assert "Not screened" in text
    root = ET.fromstring(histogram("Times", [1.0, 10.0, 11.0], unit="ms"))
    assert root.tag.endswith("svg")
    assert [count for *_, count in log_bins([1.0, 9.0, 10.0, 11.0], per_decade=1)] == [2, 2]


def test_a_tally_counts_down() -> None:
    tally = Tally(asked=10, refused=Counter({"parses": 2, "finite": 1}), accepted=7)
    rows = {name: (left, refused) for name, left, refused, *_ in tally.rows()}
    assert rows["parses"] == (10, 2)
    assert rows["finite"] == (8, 1)
    assert rows["compiles"] == (7, 0)


# -- whole runs, by the command -----------------------------------------------------------------


def synth(*arguments: str, wait: bool = True) -> subprocess.Popen[str]:
    """``cuda-agent synth ...`` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cuda_agent", "synth", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if wait:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    return process


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The seeds by hand as a file."""
    path = tmp_path_factory.mktemp("seeds") / "seeds.jsonl"
    write_seeds(path, handmade.SEEDS)
    return str(path)


@pytest.mark.slow
def test_two_shards_are_filtered_side_by_side_and_merge(tmp_path: Path, seeds: str) -> None:
    parts = [tmp_path / str(index) for index in range(2)]
    running = []
    for index, part in enumerate(parts):
        synth(
            "compose",
            "--count",
            "4",
            "--seeds",
            seeds,
            "--target",
            "cpu",
            "--shard",
            f"{index}/2",
            "--out",
            str(part),
        )
        options = ("--target", "cpu", "--compile", "aot_eager", "--workers", "1", "--out", str(part))
        running.append(synth("filter", *options, wait=False))
    for process in running:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    out = tmp_path / "set"
    synth("dedupe", *map(str, parts), "--out", str(out), "--per-cluster", "9")
    folders = [SynthFolder(part) for part in parts]
    accepted = numbers_in([folder.accepted for folder in folders])
    rejected = numbers_in([folder.rejected for folder in folders])
    assert accepted | rejected == {n for folder in folders for n, _ in read_numbered(folder.composed)}
    assert not accepted & rejected
    kept, dropped = list(read_rows(SynthFolder(out).kept)), list(read_rows(SynthFolder(out).dropped))
    assert kept
    assert len(kept) + len(dropped) == len(accepted)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_its_set_passes_an_audit(tmp_path: Path, seeds: str) -> None:
    out, file = tmp_path / "run", tmp_path / "set" / "tasks.parquet"
    options = (
        "run",
        "--preset",
        "demo",
        "--count",
        "5",
        "--seeds",
        seeds,
        "--out",
        str(out),
        "--file",
        str(file),
    )
    first = synth(*options, wait=False)
    assert first.stdout is not None
    assert "accepted" in first.stdout.readline()
    first.kill()
    first.communicate()
    before = list(read_rows(SynthFolder(out).accepted))
    synth(*options)
    after = list(read_rows(SynthFolder(out).accepted))
    assert after[: len(before)] == before
    assert len(load_taskset(str(file))) >= 5
    assert (file.parent / "card.md").is_file()
    audit = synth(
        "audit", str(file), "--out", str(tmp_path / "audit"), "--compile", "aot_eager", "--json", wait=False
    )
    output, _ = audit.communicate(timeout=600)
    found = json.loads(output.splitlines()[-1])
    assert found["exact_repeats"] == found["wrong_labels"] == 0
    assert found["duplicates"] == {}
    # Times move with the machine's load; everything else must hold again.
    assert set(found["refused"]) <= {"time-window"}, output
