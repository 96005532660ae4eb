"""Tasksets: every source gives the same tasks, selection picks them, bad rows are named and cost nothing."""

import json
from pathlib import Path

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.tasks.selection import parse_ids, parse_levels
from cuda_agent.tasks.taskset import load_taskset, open_taskset

CODE = "class Model: ...\ndef get_inputs(): return [{n}]\ndef get_init_inputs(): return []\n"
NUMBERS = {1: (1, 2, 10), 2: (2, 3)}
IDS = ["level1/1", "level1/2", "level1/10", "level2/2", "level2/3"]
LEVEL_4 = """from transformers import AutoModelForCausalLM
class Model:
    def __init__(self, name):
        self.model = AutoModelForCausalLM.from_pretrained(self.model_name)
model_name = "someone/small-gpt"
def get_inputs(): return []
def get_init_inputs(): return [model_name]
"""


def rows():
    return [
        {"code": CODE.format(n=100 * level + n), "level": level, "problem_id": n, "name": f"{n}_Op"}
        for level, numbers in NUMBERS.items()
        for n in numbers
    ]


def write_folder(root: Path) -> Path:
    for row in rows():
        folder = root / f"level{row['level']}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{row['name']}.py").write_text(row["code"])
    return root


def write_jsonl(path: Path, values) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_a_folder_a_parquet_and_a_jsonl_give_the_same_tasks(tmp_path):
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows()), tmp_path / "t.parquet")
    write_jsonl(tmp_path / "t.jsonl", rows())
    write_folder(tmp_path / "checkout" / "KernelBench")
    (tmp_path / "checkout" / "setup.py").write_text("print('no task')")
    sets = [open_taskset(str(tmp_path / name)) for name in ("t.parquet", "t.jsonl", "checkout")]
    for taskset in sets:
        assert [entry.id for entry in taskset.entries] == IDS
        assert [entry.task.name for entry in taskset.entries][:3] == ["1_Op", "2_Op", "10_Op"]
        assert not taskset.bad and not taskset.skipped
    assert len({taskset.hash for taskset in sets}) == 1
    level = open_taskset(str(tmp_path / "checkout" / "KernelBench" / "level2"))
    assert [(entry.id, entry.level, entry.problem_id) for entry in level.entries] == [
        ("level2/2", 2, 2),
        ("level2/3", 2, 3),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"levels": (2,)}, IDS[3:]),
        ({"ids": ("level1/10", "level2/2_Op")}, ["level1/10", "level2/2"]),
        ({"ids": ("level1/2-10",)}, ["level1/2", "level1/10"]),
        ({"ids": ("2-3",)}, ["level1/2", "level2/2", "level2/3"]),
        ({"ids": ("2",)}, ["level1/2", "level2/2"]),
        ({"ids": ("level2/*",), "limit": 1}, ["level2/2"]),
        ({"levels": (1,), "limit": 2}, ["level1/1", "level1/2"]),
    ],
)
def test_selection(tmp_path, options, expected):
    source = str(write_folder(tmp_path))
    assert [entry.id for entry in load_taskset(source, **options)] == expected


def test_what_is_not_there_is_told(tmp_path):
    source = str(write_folder(tmp_path))
    for options, words in (
        ({"levels": (3,)}, "no task of level 3"),
        ({"ids": ("level1/99",)}, "no task has the id 'level1/99'"),
    ):
        with pytest.raises(UsageError, match=words):
            load_taskset(source, **options)
    with pytest.raises(UsageError, match="there is no taskset"):
        load_taskset(str(tmp_path / "absent"))
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(UsageError, match="is no taskset"):
        load_taskset(str(tmp_path / "other.txt"))
    (tmp_path / "bad.parquet").write_text("not one")
    with pytest.raises(UsageError, match="cannot read"):
        load_taskset(str(tmp_path / "bad.parquet"))


def test_bad_rows_are_named_and_cost_nothing(tmp_path):
    path = write_jsonl(tmp_path / "t.jsonl", [*rows(), {"code": ""}, {"code": "def", "name": "torn"}])
    with path.open("a") as file:
        file.write(json.dumps({**rows()[0], "code": CODE.format(n=0)}) + "\n" + '{"code": "cut o')
    taskset = open_taskset(str(path))
    assert [entry.id for entry in taskset.entries] == IDS
    assert [bad.where.rpartition(": ")[2] for bad in taskset.bad] == [
        "line 6",
        "line 7 (torn)",
        "line 8 (1_Op)",
        "line 9",
    ]
    assert "invalid syntax" in taskset.bad[1].reason
    assert "another task has the id level1/1" in taskset.bad[2].reason
    write_jsonl(tmp_path / "none.jsonl", [{"code": ""}])
    with pytest.raises(UsageError, match=r"holds no task .*it has no code"):
        load_taskset(str(tmp_path / "none.jsonl"))


def test_rows_of_the_public_ops_set(tmp_path):
    """Columns code, ops, data_source: named by hash; ops as a list or as its text."""
    code = CODE.format(n=1)
    values = [
        {"code": code, "ops": '["torch.relu", "torch.sum"]', "data_source": "torch#2", "extra": 5},
        {"code": CODE.format(n=2), "ops": ["torch.tanh"], "data_source": "transformers"},
    ]
    entries = {e.task.code: e for e in load_taskset(str(write_jsonl(tmp_path / "t.jsonl", values)))}
    first = entries[code]
    assert first.id == first.task.hash and first.level is None
    assert first.task.ops == ("torch.relu", "torch.sum")
    assert (first.task.data_source, first.columns) == ("torch#2", {"extra": 5})


def test_a_task_is_skipped_until_its_weights_are_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    root = write_folder(tmp_path / "bench")
    (root / "level4").mkdir()
    (root / "level4" / "1_gpt.py").write_text(LEVEL_4)
    taskset = open_taskset(str(root))
    assert [entry.id for entry in taskset.entries] == IDS
    assert [left.where for left in taskset.skipped] == ["level4/1"]
    assert "someone/small-gpt" in taskset.skipped[0].reason
    with pytest.raises(UsageError, match=r"no task of .* can run here: level4/1"):
        open_taskset(str(root), levels=(4,))
    snapshot = tmp_path / "cache" / "models--someone--small-gpt" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"x")
    assert [entry.id for entry in open_taskset(str(root)).entries] == [*IDS, "level4/1"]


def test_options_as_text():
    assert parse_levels("1,3-4") == (1, 3, 4)
    assert parse_levels(None) == ()
    assert parse_ids(" level1/1-5, level2/3 ,") == ("level1/1-5", "level2/3")
    with pytest.raises(UsageError, match="names no levels"):
        parse_levels("one")
