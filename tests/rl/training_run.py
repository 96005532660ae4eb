"""A whole small run on disk: a random model with a tokenizer of bytes, tasks, a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from small_models import small_model

from cuda_agent.rl.config_file import parse_config
from cuda_agent.rl.run_log import UNREPEATABLE
from cuda_agent.rl.training_config import TrainConfig

TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {factor}


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
"""
CHAT = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content[-12:] }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}|{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def byte_tokenizer() -> Any:
    """One id for each byte, and an end; its template keeps the ends of messages, so contexts are short."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")
    tokenizer.chat_template = CHAT
    return tokenizer


def make_run(root: Path, **tables: dict[str, Any]) -> Path:
    """Model, tasks, demonstrations and ``config.json`` below ``root``; the configuration's path."""
    tokenizer = byte_tokenizer()
    model = small_model(vocabulary=len(tokenizer))
    with torch.no_grad():
        model.get_input_embeddings().weight.div_(3)
    # A fifth of all ids end an answer: some answers of six tokens end, some are cut.
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(50)]
    model.save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    (root / "tasks").mkdir()
    for factor in (2, 3):
        (root / "tasks" / f"times{factor}.py").write_text(TASK.format(factor=factor))
    rows = [{"prompt": f"p{n}", "answer": "ab" * (1 + n % 3)} for n in range(6)]
    (root / "demonstrations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = root / "config.toml"
    path.write_text(_toml(_merged(_defaults(root), tables)))
    return path


def config_of(root: Path, **tables: dict[str, Any]) -> TrainConfig:
    """The configuration of :func:`make_run`, without writing anything."""
    return parse_config(_merged(_defaults(root), tables))


def curve(stage: Path) -> list[dict[str, Any]]:
    """Metrics of a stage, without what the clock says."""
    lines = (stage / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in UNREPEATABLE} for line in lines]


def _defaults(root: Path) -> dict[str, dict[str, Any]]:
    phase = {"tasks": 2, "samples": 3, "context": 120}
    return {
        "model": {"path": str(root / "model"), "device": "cpu", "dtype": "float32", "rank": 2},
        "tasks": {"source": str(root / "tasks")},
        "judge": {"device": "cpu", "scorer": "cheap_reward:score"},
        "rollout": {"parallel": 3, "max_answer": 6},
        "ppo": {"actor_lambda": 0.95, "minibatches": 2, "actor_lr": 1e-3},
        "sft": {"data": str(root / "demonstrations.jsonl"), "batch": 2, "epochs": 8, "lr": 3e-3},
        "warmup": {**phase, "steps": 3, "critic_only_steps": 1},
        "collect": {"trajectories": 10, "context": 120, "max_turns": 2},
        "rft": {"batch": 2},
        "value": {"epochs": 1, "batch": 2, "held_out": 0.34},
        "agentic": {**phase, "steps": 3, "max_turns": 2},
        "guards": {"action": "warn"},
        "run": {"checkpoint_every": 2, "seed": 5},
    }


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: {**base.get(name, {}), **changes.get(name, {})} for name in {**base, **changes}}


def _toml(tables: dict[str, Any]) -> str:
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)
