"""Configuration of training, from TOML: one frozen dataclass for each table, checked when made.

Needs no torch: a wrong file is told before anything heavy is imported. Ranges stand beside the fields.
``configs/paper.toml`` has the paper's values (arXiv 2602.24286, sections 3 and 4), ``configs/small.toml``
ours for one GPU, with a reason for each difference.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cuda_agent.config import Device, Precision, Track
from cuda_agent.judge.reward import RewardKind


class Level(StrEnum):
    """What an action is.

    ``FILE``: an answer with whole files in fenced blocks is judged at once and answered shortly.
    ``WORKSPACE``: all tools of the agent loop.
    """

    FILE = "file"
    WORKSPACE = "workspace"


class AlarmAction(StrEnum):
    """What an alarm does: say so; stop; or go back to the last good checkpoint and draw anew."""

    WARN = "warn"
    STOP = "stop"
    ROLL_BACK = "roll_back"


def _in(low: float, high: float = float("inf"), *, default: Any) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


class EngineKind(StrEnum):
    """What samples.

    ``SLOTS``: one engine for all episodes, batched. ``PLAIN``: the model alone, each episode by itself.
    """

    SLOTS = "slots"
    PLAIN = "plain"


@dataclass(frozen=True)
class ModelConfig:
    """``[model]``."""

    path: str = "model"
    """Folder of transformers with weights and tokenizer."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    dtype: str = "bfloat16"
    """Of the weights; masters are float32 whatever it is."""
    rank: int = _in(0, 1024, default=16)
    """Of the adapters; 0 trains all weights."""
    alpha: float = _in(0, 10_000, default=32.0)
    """Scale of the adapters."""
    gradient_checkpointing: bool = True
    """Run layers again in the backward pass."""
    logit_rows: int = _in(1, default=1024)
    """Rows of logits in memory at a time."""
    max_pass_tokens: int = _in(1, default=32_768)
    """Most tokens in one forward pass, unless one trajectory alone has more."""


@dataclass(frozen=True)
class TasksConfig:
    """``[tasks]``: what is trained on, and how tasks are drawn."""

    source: str = "tasks"
    """A taskset, as for ``cuda-agent eval``."""
    limit: int = _in(0, default=0)
    """The first so many tasks; 0: all."""
    curriculum: bool = True
    """Draw 70 % from tasks that sometimes pass, 20 % from unsolved, 10 % from solved ones."""


@dataclass(frozen=True)
class JudgeTable:
    """``[judge]``: contract of the training reward."""

    track: Track = Track.MATCHED
    precision: Precision = Precision.DEFAULT
    device: Device = Device.AUTO
    gpu: int = _in(0, default=0)
    reward: RewardKind = RewardKind.MILESTONE
    scorer: str = "judge"
    """``judge``, a pool's ``http://HOST:PORT``, or ``package.module:function``, a cheaper source."""


@dataclass(frozen=True)
class RolloutConfig:
    """``[rollout]``: how episodes are made. Sampling is from the model's own distribution, always."""

    level: Level = Level.FILE
    parallel: int = _in(1, 4096, default=8)
    """Episodes at once."""
    max_answer: int = _in(1, default=1024)
    """Longest answer of one turn, tokens."""
    short_skill: bool = True
    """A skill text of a few hundred tokens, for small models."""
    time_limit_s: float = _in(0, default=0.0)
    """Longest episode, seconds; 0: none. What the clock ends is dropped."""
    temperature: float = _in(1, 1, default=1.0)
    """1: anything else would sample from a distribution that the trainer does not compute."""


@dataclass(frozen=True)
class GenerationTable:
    """``[generation]``: what samples the episodes; a slot holds the longest context of the stage."""

    engine: EngineKind = EngineKind.SLOTS
    slots: int = _in(0, 4096, default=0)
    """Completions at once; 0: as many as ``rollout.parallel``."""
    cuda_graphs: bool = True
    """Decode as CUDA graphs."""
    exact_on_cpu: bool = True
    """On a CPU, each completion in passes of its own: a continued run equals an unbroken one to the bit."""


@dataclass(frozen=True)
class PpoTable:
    """``[ppo]``: the maths and the optimisers, of warm-up and agentic PPO alike."""

    ratio: str = "decoupled"
    clip_low: float = _in(1e-6, 0.999, default=0.2)
    clip_high: float = _in(1e-6, 100, default=0.28)
    dual_clip: float = _in(1, 1e6, default=3.0)
    truncation: float = _in(1, 1e6, default=2.0)
    probability_floor: float = _in(0, 0.999, default=1e-6)
    gamma: float = _in(1e-6, 1, default=1.0)
    actor_lambda: float = _in(0, 1, default=0.0)
    """0: length-adaptive, 1 - 1 / (0.05 L)."""
    value_target: str = "mc"
    target_lambda: float = _in(0, 1, default=0.95)
    whiten: bool = True
    actor_lr: float = _in(0, 1, default=3e-5)
    critic_lr: float = _in(0, 1, default=1e-4)
    minibatches: int = _in(1, default=4)
    epochs: int = _in(1, default=1)
    max_grad_norm: float = _in(0, default=1.0)
    weight_decay: float = _in(0, default=0.0)
    entropy: float = _in(0, default=0.0)
    reference_kl: float = _in(0, default=0.0)
    critic: bool = True


@dataclass(frozen=True)
class SftConfig:
    """``[sft]``: cold start from demonstrations; no data, no stage."""

    data: str = ""
    """Folder of episodes with token ids, or a .jsonl of ``{"prompt", "answer"}``."""
    epochs: int = _in(1, default=2)
    batch: int = _in(1, default=16)
    lr: float = _in(0, 1, default=3e-5)


@dataclass(frozen=True)
class PhaseConfig:
    """``[warmup]`` (one turn) and ``[agentic]`` (many)."""

    steps: int = _in(0, default=60)
    tasks: int = _in(1, default=16)
    """Different tasks in a rollout batch."""
    samples: int = _in(1, default=8)
    """Episodes of each."""
    context: int = _in(8, default=2048)
    max_turns: int = _in(1, default=1)
    critic_only_steps: int = _in(0, default=0)


@dataclass(frozen=True)
class CollectConfig:
    """``[collect]``: trajectories of the warmed-up model in the agent loop."""

    trajectories: int = _in(1, default=512)
    context: int = _in(8, default=8192)
    max_turns: int = _in(1, default=6)


@dataclass(frozen=True)
class RftConfig:
    """``[rft]``: rejection fine-tuning of the actor."""

    enabled: bool = True
    epochs: int = _in(1, default=1)
    batch: int = _in(1, default=16)
    lr: float = _in(0, 1, default=3e-5)
    sum_tokens: bool = False
    """Sum over tokens, as the paper writes it, instead of each trajectory's mean."""
    max_malformed: int = _in(0, default=0)
    max_in_a_row: int = _in(1, default=2)
    max_redundant_share: float = _in(0, 1, default=0.3)
    min_actions: int = _in(1, default=6)


@dataclass(frozen=True)
class ValueConfig:
    """``[value]``: pretraining of the critic on everything that was collected."""

    enabled: bool = True
    epochs: int = _in(1, default=4)
    batch: int = _in(1, default=16)
    held_out: float = _in(0, 0.9, default=0.125)
    """Share of trajectories that explained variance is measured on."""


@dataclass(frozen=True)
class GuardConfig:
    """``[guards]``: alarms, each at a bound; the action follows after ``patience`` steps in a row."""

    action: AlarmAction = AlarmAction.ROLL_BACK
    patience: int = _in(1, default=3)
    max_rollbacks: int = _in(0, default=1)
    entropy_rise: float = _in(0, default=0.5)
    """Share above the mean of the first three steps."""
    entropy_floor: float = _in(0, default=0.001)
    ratio_outside: float = _in(0, 1, default=0.05)
    """Share of ratios outside [0.5, 2]."""
    kl: float = _in(0, default=0.1)
    gap: float = _in(0, default=0.02)
    """Mean |difference| of log-probabilities between trainer and sampler."""
    explained_variance: float = _in(-1e9, 1, default=-1.0)
    length_clipped: float = _in(0, 1, default=0.25)
    identical: float = _in(0, 1, default=0.5)
    """Share of answers that another of the same batch and task equals."""
    drop_rate: float = _in(0, 1, default=0.02)
    reward_fall: float = _in(0, default=0.5)
    """Below the best mean reward so far."""


@dataclass(frozen=True)
class RunConfig:
    """``[run]``."""

    seed: int = _in(0, 2**31 - 1, default=0)
    checkpoint_every: int = _in(1, default=5)
    keep: int = _in(1, default=3)
    """Checkpoints kept of each stage."""
    tensorboard: bool = False


@dataclass(frozen=True)
class PlanConfig:
    """``[plan]``: rates that ``train plan`` reckons with; measured ones are better."""

    judged_per_minute: float = _in(1e-6, default=100.0)
    decode_tokens_per_s: float = _in(1e-6, default=5000.0)
    train_tokens_per_s: float = _in(1e-6, default=20_000.0)
    answer_tokens: int = _in(1, default=600)
    """Expected tokens of one answer."""
    prompt_tokens: int = _in(1, default=600)
    observation_tokens: int = _in(0, default=250)


@dataclass(frozen=True)
class TrainConfig:
    """The whole file.

    Attributes:
        deviations: for each key that differs from the paper's, such as ``ppo.ratio``: why.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    judge: JudgeTable = field(default_factory=JudgeTable)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    generation: GenerationTable = field(default_factory=GenerationTable)
    ppo: PpoTable = field(default_factory=PpoTable)
    sft: SftConfig = field(default_factory=SftConfig)
    warmup: PhaseConfig = field(default_factory=lambda: PhaseConfig(critic_only_steps=5))
    collect: CollectConfig = field(default_factory=CollectConfig)
    rft: RftConfig = field(default_factory=RftConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    agentic: PhaseConfig = field(
        default_factory=lambda: PhaseConfig(steps=30, samples=4, context=8192, max_turns=6)
    )
    guards: GuardConfig = field(default_factory=GuardConfig)
    run: RunConfig = field(default_factory=RunConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    deviations: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted key, deviations left out."""
        tables = self.to_dict()
        del tables["deviations"]
        return {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
