"""Configurations: the shipped ones against the paper's values, and what a wrong one is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.rl.config_file import load_config, parse_config
from cuda_agent.rl.plan import ModelSize, memory_gib, phases, plan_text, slots_gib
from cuda_agent.rl.stage_data import same_config

CONFIGS = Path(__file__).parents[2] / "configs"
# arXiv 2602.24286, sections 3 and 4: everything that is stated there and has a setting here.
PUBLISHED: dict[str, Any] = {
    "judge.reward": "milestone",
    "judge.track": "paper",
    "rollout.level": "workspace",
    "rollout.parallel": 128,
    "ppo.ratio": "sampler",
    "ppo.clip_low": 0.2,
    "ppo.clip_high": 0.28,
    "ppo.gamma": 1.0,
    "ppo.actor_lambda": 0.95,
    "ppo.value_target": "paper",
    "ppo.target_lambda": 0.95,
    "ppo.actor_lr": 3e-6,
    "ppo.critic_lr": 6e-6,
    "ppo.minibatches": 1,
    "ppo.critic": True,
    "model.rank": 0,
    "warmup.context": 32_768,
    "warmup.max_turns": 1,
    "collect.context": 131_072,
    "collect.max_turns": 150,
    "rft.enabled": True,
    "rft.sum_tokens": True,
    "value.enabled": True,
    "agentic.steps": 150,
    "agentic.context": 131_072,
    "agentic.max_turns": 150,
}


def test_paper_toml_has_every_published_value() -> None:
    config = load_config(CONFIGS / "paper.toml")
    flat = config.flat()
    assert {key: flat[key] for key in PUBLISHED} == PUBLISHED
    for phase in (config.warmup, config.agentic):
        assert phase.tasks * phase.samples == 1024  # global batch
    assert config.deviations == {}


def test_small_toml_lists_every_deviation_and_no_other() -> None:
    paper, small = (load_config(CONFIGS / f"{name}.toml") for name in ("paper", "small"))
    theirs, ours = paper.flat(), small.flat()
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert set(small.deviations) == differing
    assert all(len(reason) > 8 for reason in small.deviations.values())


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"modle": {}}, r"unknown table \[modle\]"),
        ({"model": 3}, "model must be a table"),
        ({"ppo": {"clip": 0.2}}, "unknown key ppo.clip"),
        ({"warmup": {"steps": 1.5}}, "warmup.steps is 1.5. It must be a whole number"),
        ({"warmup": {"steps": True}}, "warmup.steps is True"),
        ({"ppo": {"whiten": "yes"}}, "ppo.whiten is 'yes'. It must be true or false"),
        ({"ppo": {"clip_low": 1.5}}, "ppo.clip_low is 1.5. It must be between"),
        ({"run": {"keep": 0}}, "run.keep is 0. It must be at least 1"),
        ({"generation": {"engine": "vllm"}}, "generation.engine is 'vllm'. Choose one of: slots, plain"),
        ({"ppo": {"ratio": "both"}}, "ppo.ratio is 'both'. Choose one of: sampler, decoupled"),
        ({"judge": {"track": "fast"}}, "judge.track is 'fast'. Choose one of: matched, paper"),
        ({"model": {"dtype": "int8"}}, "model.dtype is 'int8'"),
        ({"rollout": {"temperature": 0.7}}, "rollout.temperature is 0.7"),
        ({"deviations": {"ppo.nothing": "why"}}, "names no setting 'ppo.nothing'"),
        ({"deviations": {"ppo.ratio": " "}}, "deviation ppo.ratio has no reason"),
        ({"ppo": {"dual_clip": 1.2}}, "ppo.dual_clip must be above"),
        ({"model": {"rank": 0}, "ppo": {"reference_kl": 0.1}}, "needs the frozen backbone"),
        ({"warmup": {"max_turns": 2}}, "warmup.max_turns must be 1"),
        ({"ppo": {"critic": False}, "warmup": {"samples": 1}, "agentic": {"samples": 1}}, "2 samples"),
    ],
)
def test_wrong_settings_are_one_line(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_config(tables)
    assert "\n" not in str(caught.value)


def test_not_toml_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[ppo\n")
    with pytest.raises(UsageError, match="is not TOML"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(UsageError, match="cannot read"):
        load_config(tmp_path / "none.toml")


def test_plan_counts_what_the_configuration_says() -> None:
    rows = {phase.name: phase for phase in phases(load_config(CONFIGS / "small.toml"))}
    assert rows["warmup"].judged == 60 * 16 * 8  # one verdict each
    assert rows["collect"].judged == 512 * 6  # five turns told of, and the last judged in full
    assert rows["ppo"].episodes == 30 * 16 * 4
    assert rows["ppo"].longest == 8192
    assert rows["value"].trained == 4 * rows["rft"].trained


def test_plan_of_memory_grows_with_what_is_trained() -> None:
    size = ModelSize(weights=494_000_000, layers=24, hidden=896, vocabulary=151_936)
    small, paper = (load_config(CONFIGS / f"{name}.toml") for name in ("small", "paper"))
    adapters, whole = memory_gib(small, size, 8192), memory_gib(paper, size, 8192)
    assert whole["weights"] == pytest.approx(2 * adapters["weights"])
    assert whole["optimisers and gradients"] > 20 * adapters["optimisers and gradients"]
    assert adapters["logits"] < 2


def test_plan_of_sampling_is_that_of_the_slots() -> None:
    size = ModelSize(weights=494_000_000, layers=24, hidden=896, vocabulary=151_936, cached=256)
    small = load_config(CONFIGS / "small.toml")
    # 32 slots of 8,192 tokens and one: 24 layers, keys and values of two heads of 64, bfloat16.
    assert slots_gib(small, size, 8192) == pytest.approx(32 * 8193 * 24 * 256 * 2 / 2**30)
    few = parse_config({"generation": {"slots": 4}, "rollout": {"parallel": 32}})
    assert slots_gib(few, size, 8192) == pytest.approx(slots_gib(small, size, 8192) / 8)
    assert slots_gib(parse_config({"generation": {"engine": "plain"}}), size, 8192) == 0


def test_plan_runs_without_torch_and_without_a_model() -> None:
    code = (
        "import sys; from pathlib import Path; from cuda_agent.rl.config_file import load_config;"
        "from cuda_agent.rl.plan import plan_text; print(plan_text(load_config(Path(sys.argv[1]))));"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(CONFIGS / "small.toml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deviations from the paper" in done.stdout
    assert plan_text(load_config(CONFIGS / "small.toml")).splitlines()[0].startswith("phase")


def test_a_run_may_be_reconfigured_until_a_stage_has_begun(tmp_path: Path) -> None:
    first, second = (parse_config({"model": {"path": path}}) for path in ("nowhere", "model"))
    same_config(first, tmp_path / "config.json")
    same_config(second, tmp_path / "config.json")
    (tmp_path / "warmup").mkdir()
    same_config(second, tmp_path / "config.json")
    with pytest.raises(UsageError, match=r"another configuration: model\.path\. Name a new --out"):
        same_config(first, tmp_path / "config.json")
