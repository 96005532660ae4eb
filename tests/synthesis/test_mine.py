"""Mining of PyTorch: what is found out of an operator, and the stage over processes that may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.synthesis.compose.abstract import apply
from cuda_agent.synthesis.jsonl import read_rows
from cuda_agent.synthesis.mine.running import seed_runs
from cuda_agent.synthesis.mine.sources import SOURCES, wanted
from cuda_agent.synthesis.mine.traits import Idle
from cuda_agent.synthesis.seed import Seed, read_seeds
from cuda_agent.synthesis.seed_rules import Setting
from cuda_agent.synthesis.stages.folder import SynthFolder
from cuda_agent.synthesis.stages.mine_stage import Mining, run_mine

FAULTY = Path(__file__).with_name("mining_faults.py")


def mined(name: str) -> Seed:
    """The seed of one operator of PyTorch."""
    return SOURCES["torch"].mine(f"torch.{name}")


def arguments(seed: Seed) -> set[str]:
    """Sizes that the constructor takes."""
    return {rule.name for rule in seed.sizes if rule.argument}


def choices(seed: Seed, option: str) -> tuple[object, ...]:
    """Of one option; empty where the seed has no such."""
    return next((rule.choices for rule in seed.options if rule.name == option), ())


def test_a_module_is_generalised() -> None:
    seed = mined("nn.Conv2d")
    assert seed.forms[0].shapes == (("batch", "in_channels", "height", "width"),)
    assert arguments(seed) == {"in_channels", "out_channels"}
    assert {rule.name: rule.least for rule in seed.sizes}["height"] == choices(seed, "kernel_size")[0] == 3
    assert {1, 2} <= set(choices(seed, "stride"))
    assert seed.traits.has_parameters and seed.traits.linear and not seed.traits.elementwise
    sizes = {"batch": 3, "in_channels": 40, "out_channels": 20, "height": 31, "width": 17}
    options = seed.base().options | {"stride": 2, "padding": 1}
    found = apply(seed, seed.arguments(Setting(0, sizes, options)), [((3, 40, 31, 17), "float32")])
    assert found is not None and found.shape == (3, 20, 16, 9)
    written = seed.construction(Setting(0, sizes, options))
    assert written == "nn.Conv2d(40, 20, 3, stride=2, padding=1)"


def test_sizes_that_meet_in_a_product_move_together() -> None:
    (shapes,) = (form.shapes for form in mined("addmm").forms)
    added, left, right = shapes
    assert added is not None and left is not None and right is not None
    assert added == (left[0], right[1])
    assert left[1] == right[0]
    assert len({*added, *left, *right}) == 3


def test_indices_stay_below_the_size_they_index() -> None:
    seed = mined("gather")
    _, index = seed.inputs
    assert index.dtypes == ("int64",) and index.high == (seed.forms[0].shapes[0] or ())[-1]
    assert choices(seed, "dim") == (-1,)


def test_options_that_change_weights_in_place_are_left_out() -> None:
    embedding = mined("nn.Embedding")
    assert embedding.inputs[0].high == "num_embeddings"
    assert choices(embedding, "max_norm") == ()  # it would renormalise the weight in place


def test_classes_are_drawn_for_a_loss() -> None:
    seed = mined("nn.functional.cross_entropy")
    assert [str(rule.law) for rule in seed.inputs] == ["normal", "integers"]
    assert seed.inputs[1].high == "num_classes"
    assert (("batch", "num_classes"), ("batch",)) in [form.shapes for form in seed.forms]


def test_laws_follow_the_domain() -> None:
    assert str(mined("acos").inputs[0].law) == "symmetric_unit"
    assert str(mined("linalg.cholesky").inputs[0].law) == "positive_definite"
    assert str(mined("special.log_ndtr").inputs[0].law) == "normal"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nn.Dropout", "gives its input back"),
        ("nn.functional.dropout", "random"),
        ("zeros_like", "does not depend"),
        ("relu_", "in-place"),
        ("nn.Sequential", "container"),
        ("einsum", "neither a tensor nor a plain value"),
    ],
)
def test_what_is_no_work_is_refused_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(Idle, match=reason):
        mined(name)


@pytest.mark.parametrize("name", ["softmax", "nn.functional.linear"])
def test_every_form_of_a_seed_runs(name: str) -> None:
    seed = mined(name)
    assert Seed.from_dict(json.loads(json.dumps(seed.to_dict()))) == seed
    assert all(seed_runs(seed, form) for form in range(len(seed.forms)))


def test_the_walk_finds_hundreds_of_operators_and_knows_patterns() -> None:
    assert len(wanted("torch")) > 600
    assert [id_ for _, id_ in wanted("torch", ["torch.nn.MaxPool?d"])] == [
        f"torch.nn.MaxPool{n}d" for n in (1, 2, 3)
    ]
    with pytest.raises(UsageError, match="no operator"):
        wanted("torch", ["torch.no_such"])
    with pytest.raises(UsageError, match="no source"):
        wanted("numpy")


def test_a_crash_or_hang_costs_that_operator_only(tmp_path: Path) -> None:
    folder = SynthFolder(tmp_path)
    subjects = [("torch", id_) for id_ in ("torch.sin", "crash", "torch.cumsum", "hang", "torch.tril")]
    done: list[int] = []
    counts = run_mine(folder, subjects, Mining(limit_s=20.0, worker=FAULTY), on_subject=done.append)
    assert [seed.id for seed in read_seeds(folder.seeds)] == ["torch.sin", "torch.cumsum", "torch.tril"]
    reasons = {row["id"]: row["reason"] for row in read_rows(folder.unfit)}
    assert set(reasons) == {"crash", "hang"}
    assert "SIGABRT" in reasons["crash"] and "20 s" in reasons["hang"]
    assert counts["seed"] == 3 and counts.total() == 5
    assert done == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    names = [
        "torch.nn.MaxPool2d",
        "torch.nn.Conv2d",
        "torch.nn.Dropout",
        "torch.sin",
        "torch.cos",
        "torch.tan",
    ]
    command = [sys.executable, "-m", "cuda_agent", "synth", "mine", *names]
    options = ["--out", str(tmp_path), "--source", "torch", "--workers", "1"]
    folder = SynthFolder(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    first = subprocess.Popen([*command, *options], env=env, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not list(read_rows(folder.seeds)) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    before = [seed.id for seed in read_seeds(folder.seeds)]
    assert 1 <= len(before) < 5
    with folder.seeds.open("ab") as file:
        file.write(b'{"id": "torch.sin", "op')  # a row cut off
    again = subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=True)
    after = [seed.id for seed in read_seeds(folder.seeds)]
    assert len(after) == len(set(after)) == 5 and set(before) <= set(after)
    assert [row["id"] for row in read_rows(folder.unfit)] == ["torch.nn.Dropout"]
    assert "5 seeds" in again.stdout and "it gives its input back: 1" in again.stdout
