"""From a configuration to the options of networks and trainer."""

from __future__ import annotations

from cuda_agent.rl.losses import Clipping
from cuda_agent.rl.networks import NetworkOptions
from cuda_agent.rl.ppo import PpoConfig, RatioMode, ValueTarget
from cuda_agent.rl.trainer import TrainerOptions
from cuda_agent.rl.training_config import TrainConfig


def ppo_config(config: TrainConfig) -> PpoConfig:
    """Settings of the maths."""
    table = config.ppo
    return PpoConfig(
        ratio=RatioMode(table.ratio),
        clipping=Clipping(table.clip_low, table.clip_high, table.dual_clip),
        truncation=table.truncation,
        probability_floor=table.probability_floor,
        gamma=table.gamma,
        actor_lambda=table.actor_lambda or None,
        value_target=ValueTarget(table.value_target),
        paper_lambda=table.target_lambda,
        whiten=table.whiten,
    )


def trainer_options(config: TrainConfig) -> TrainerOptions:
    """Settings of the updates."""
    table = config.ppo
    return TrainerOptions(
        ppo=ppo_config(config),
        actor_lr=table.actor_lr,
        critic_lr=table.critic_lr,
        num_minibatches=table.minibatches,
        num_epochs=table.epochs,
        max_tokens=config.model.max_pass_tokens,
        max_grad_norm=table.max_grad_norm,
        weight_decay=table.weight_decay,
        entropy=table.entropy,
        reference_kl=table.reference_kl,
        critic=table.critic,
    )


def network_options(config: TrainConfig, *, critic: bool) -> NetworkOptions:
    """Settings of the networks; without a critic where the stage or the configuration has none."""
    return NetworkOptions(
        rank=config.model.rank,
        alpha=config.model.alpha,
        checkpointing=config.model.gradient_checkpointing,
        rows=config.model.logit_rows,
        with_critic=critic and config.ppo.critic,
    )
