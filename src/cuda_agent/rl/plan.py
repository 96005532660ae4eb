"""What a training run would cost, reckoned from its configuration before anything runs.

Reckoned, not measured: rates come from ``[plan]``, sizes from the model's ``config.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.rl.training_config import EngineKind, Level, PhaseConfig, TrainConfig

_GIB = 2**30
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_FULL_TRAINING = 12
"""Bytes for each trained weight beside the weight itself: master and two moments, float32."""
_PASSES = 4
"""Passes over the tokens of a PPO update: recomputation, forward and backward, of actor and critic."""


@dataclass(frozen=True)
class ModelSize:
    """Of a decoder.

    Attributes:
        weights: number, the vocabulary's included.
        layers, hidden, vocabulary: as in ``config.json``.
        cached: numbers that a layer keeps of a token, keys and values.
    """

    weights: int
    layers: int
    hidden: int
    vocabulary: int
    cached: int = 0


@dataclass(frozen=True)
class Phase:
    """One row of the plan.

    Attributes:
        episodes: made.
        judged: verdicts, those that the policy is told of included.
        decoded, trained: tokens.
        seconds: wall time by the rates of ``[plan]``, nothing overlapping.
        longest: tokens of the longest trajectory.
    """

    name: str
    episodes: int
    judged: int
    decoded: int
    trained: int
    seconds: float
    longest: int


def phases(config: TrainConfig) -> list[Phase]:
    """All phases that the configuration runs."""
    collect = config.collect
    rows = [_phase("warmup", config, config.warmup)]
    collected = _episodes(
        "collect", config, number=collect.trajectories, turns=collect.max_turns, context=collect.context
    )
    rows.append(collected)
    if config.rft.enabled:
        rows.append(_fit("rft", config, collected, config.rft.epochs))
    if config.value.enabled and config.ppo.critic:
        rows.append(_fit("value", config, collected, config.value.epochs))
    rows.append(_phase("ppo", config, config.agentic))
    return rows


def memory_gib(config: TrainConfig, size: ModelSize, longest: int) -> dict[str, float]:
    """Memory of an update of actor and critic, by part, GiB.

    Activations with checkpointing: one hidden state for each layer and token, and one layer's inner states.
    """
    width = _BYTES[config.model.dtype]
    tokens = max(longest, config.model.max_pass_tokens)
    networks = 2 if config.ppo.critic and not config.model.rank else 1
    trained = size.weights * networks
    if config.model.rank:
        # Seven linear layers of about 3 hidden sizes each way, A and B, actor and critic.
        trained = size.layers * 7 * 4 * size.hidden * config.model.rank * (2 if config.ppo.critic else 1)
    per_token = size.layers * size.hidden * width + 40 * size.hidden * width
    if not config.model.gradient_checkpointing:
        per_token = size.layers * 40 * size.hidden * width
    parts = {
        "weights": size.weights * width * networks,
        "optimisers and gradients": trained * (_FULL_TRAINING + 4),
        f"activations, {tokens} tokens": tokens * per_token,
        "logits": 4 * 3 * config.model.logit_rows * size.vocabulary,
    }
    return {name: number / _GIB for name, number in parts.items()}


def slots_gib(config: TrainConfig, size: ModelSize, context: int) -> float:
    """Keys and values of the engine's slots, GiB; free again before an update. 0 without the engine."""
    if config.generation.engine is not EngineKind.SLOTS:
        return 0.0
    slots = config.generation.slots or config.rollout.parallel
    # One token more: the scratch column.
    return slots * (context + 1) * size.layers * size.cached * _BYTES[config.model.dtype] / _GIB


def model_size(path: Path) -> ModelSize | None:
    """Sizes from a model's ``config.json``; ``None`` where there is none."""
    try:
        data: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        hidden, layers = int(data["hidden_size"]), int(data["num_hidden_layers"])
        inner, vocabulary = int(data["intermediate_size"]), int(data["vocab_size"])
        heads = int(data["num_attention_heads"])
        width = int(data.get("head_dim") or hidden // heads)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    groups = int(data.get("num_key_value_heads", heads))
    grouped = groups / heads
    layer = hidden * hidden * (2 + 2 * grouped) + 3 * hidden * inner
    embeddings = vocabulary * hidden * (1 if data.get("tie_word_embeddings", True) else 2)
    return ModelSize(int(layers * layer + embeddings), layers, hidden, vocabulary, 2 * groups * width)


def plan_text(config: TrainConfig) -> str:
    """The plan as a table, for people."""
    rows = phases(config)
    lines = [_row("phase", *("episodes", "judged", "decoded", "trained", "wall time", "longest"))]
    lines += [
        _row(p.name, p.episodes, p.judged, p.decoded, p.trained, _time(p.seconds), p.longest) for p in rows
    ]
    sums = [
        sum(column)
        for column in zip(*((p.episodes, p.judged, p.decoded, p.trained) for p in rows), strict=True)
    ]
    lines.append(_row("in all", *sums, _time(sum(p.seconds for p in rows)), ""))
    size = model_size(Path(config.model.path))
    if size is None:
        lines.append(f"memory: unknown, no config.json in {config.model.path}")
    else:
        parts = memory_gib(config, size, max(p.longest for p in rows))
        shown = ", ".join(f"{name} {number:.1f}" for name, number in parts.items())
        lines.append(f"memory of an update, about {sum(parts.values()):.1f} GiB: {shown}")
        lines.append(_sampling_memory(config, size, parts["weights"]))
    rates = config.plan
    lines.append(
        f"reckoned with {rates.judged_per_minute:g} verdicts a minute, {rates.decode_tokens_per_s:g} "
        f"tokens/s sampled, {rates.train_tokens_per_s:g} trained, "
        f"{rates.answer_tokens} tokens an answer ([plan])"
    )
    if config.deviations:
        lines.append(f"{len(config.deviations)} deviations from the paper, each with its reason in the file")
    return "\n".join(lines)


def _sampling_memory(config: TrainConfig, size: ModelSize, weights: float) -> str:
    if config.generation.engine is not EngineKind.SLOTS:
        return "memory of sampling: weights, and a cache for each episode (generation.engine is plain)"
    slots = config.generation.slots or config.rollout.parallel
    stages = (("warmup", config.warmup), ("collect", config.collect), ("ppo", config.agentic))
    shown = ", ".join(
        f"{name} {slots_gib(config, size, stage.context):.1f} ({stage.context} tokens each)"
        for name, stage in stages
    )
    return f"memory of sampling, freed before an update: weights {weights:.1f}, {slots} slots, GiB: {shown}"


def _phase(name: str, config: TrainConfig, phase: PhaseConfig) -> Phase:
    number = phase.steps * phase.tasks * phase.samples
    made = _episodes(name, config, number=number, turns=phase.max_turns, context=phase.context)
    trained = number * _mean_length(config, phase.max_turns, phase.context) * _PASSES * config.ppo.epochs
    seconds = made.seconds + trained / config.plan.train_tokens_per_s
    return Phase(name, number, made.judged, made.decoded, trained, seconds, made.longest)


def _episodes(name: str, config: TrainConfig, *, number: int, turns: int, context: int) -> Phase:
    rates = config.plan
    # At level workspace the agent's scripts judge as often as it asks; once a turn is the most.
    told = turns - 1 if config.rollout.level is Level.FILE or turns == 1 else turns
    judged = number * (told + 1)
    decoded = number * min(turns * rates.answer_tokens, context)
    seconds = judged * 60 / rates.judged_per_minute + decoded / rates.decode_tokens_per_s
    return Phase(name, number, judged, decoded, 0, seconds, context)


def _fit(name: str, config: TrainConfig, collected: Phase, epochs: int) -> Phase:
    length = _mean_length(config, config.collect.max_turns, config.collect.context)
    trained = collected.episodes * length * epochs
    return Phase(name, 0, 0, 0, trained, trained / config.plan.train_tokens_per_s, config.collect.context)


def _mean_length(config: TrainConfig, turns: int, context: int) -> int:
    rates = config.plan
    return min(
        context, rates.prompt_tokens + turns * rates.answer_tokens + (turns - 1) * rates.observation_tokens
    )


def _row(name: str, *cells: int | str) -> str:
    widths = (10, 12, 17, 17, 13, 9)
    shown = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)
    return f"{name:<8}" + "".join(f"{cell:>{width}}" for cell, width in zip(shown, widths, strict=True))


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} m" if minutes >= 60 else f"{minutes} m"
