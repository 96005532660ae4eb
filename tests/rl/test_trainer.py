"""The trainer's parts against plain computations, and updates that do not depend on how a batch is cut."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import small_model, small_rollouts

from cuda_agent.errors import UsageError
from cuda_agent.rl.losses import token_entropies, token_logprobs
from cuda_agent.rl.master import MasterAdamW
from cuda_agent.rl.networks import CRITIC, NetworkOptions, Networks, check_model
from cuda_agent.rl.ppo import PpoConfig, pack
from cuda_agent.rl.trainer import Trainer, TrainerOptions
from cuda_agent.rl.vocabulary import head_logprobs

PPO = PpoConfig(actor_lambda=0.95)


def networks(*, seed: int = 0, dtype: torch.dtype = torch.float32, **options: object) -> Networks:
    torch.manual_seed(seed + 1)
    return Networks(small_model(seed=seed, dtype=dtype), NetworkOptions(rank=4, alpha=8.0, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_head_in_blocks_equals_whole_logits_with_gradients(rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((10, 6), (23, 6), (23,))
    )
    ids = torch.randint(0, 23, (10,), generator=generator)
    toward = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    found, wanted = [], []
    for into, (logprobs, entropies) in (
        (found, head_logprobs(hidden, weight, ids, bias=bias, rows=rows)),
        (wanted, _plain_head(hidden @ weight.t() + bias, ids)),
    ):
        loss = (toward[0] * logprobs + toward[1] * entropies).sum()
        into += [logprobs, entropies, *torch.autograd.grad(loss, (hidden, weight, bias))]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def _plain_head(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return token_logprobs(logits, ids), token_entropies(logits)


def test_packed_trajectories_equal_each_alone() -> None:
    model = small_model()
    plain = copy.deepcopy(model)
    rollouts = small_rollouts()
    logprobs, entropies = networks().logprobs(pack(rollouts))
    alone = []
    for rollout in rollouts:
        logits = plain(torch.tensor([rollout.token_ids])).logits[0]
        one = pack([rollout])
        alone.append(_plain_head(one.before_acted(logits), one.acted_ids))
    torch.testing.assert_close(logprobs, torch.cat([a for a, _ in alone]), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, torch.cat([b for _, b in alone]), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("rank", [4, 0])
def test_update_does_not_depend_on_forward_size_or_checkpointing(rank: int) -> None:
    after = []
    for max_tokens, checkpointing in ((10_000, True), (1, True), (25, False)):
        torch.manual_seed(1)
        model = small_model(dtype=torch.float64)
        nets = Networks(model, NetworkOptions(rank=rank, checkpointing=checkpointing))
        trainer = Trainer(nets, TrainerOptions(ppo=PPO, max_tokens=max_tokens, num_minibatches=2))
        trainer.ppo_step(small_rollouts(), seed=3)
        after.append(
            torch.cat([w.detach().flatten() for w in (*nets.actor_weights(), *nets.critic_weights())])
        )
    for other in after[1:]:
        assert (other - after[0]).abs().max() < 1e-6


def test_no_gradient_of_the_critic_reaches_the_actor() -> None:
    nets = networks()
    batch = pack(small_rollouts())
    torch.nn.init.normal_(nets.value_head.weight)  # a zero head would hide it
    with nets.backward_of(CRITIC):
        nets.values(batch).sum().backward()
    assert all(weight.grad is None for weight in nets.actor_weights())
    assert any(
        weight.grad is not None and weight.grad.abs().max() > 0 for weight in nets.critic_weights()[:-2]
    )
    before = nets.logprobs(batch)[0].detach()
    Trainer(nets, TrainerOptions(ppo=PPO)).value_step(small_rollouts())
    assert torch.equal(nets.logprobs(batch)[0], before)


def test_what_samples_from_the_model_sees_the_actor() -> None:
    """Sampler and trainer move alike in one step: the log-probabilities of generation are the trainer's."""
    nets = networks()
    trainer = Trainer(nets, TrainerOptions(ppo=PPO, actor_lr=1e-2))
    rollouts = small_rollouts()
    batch = pack(rollouts)
    before = nets.logprobs(batch)[0].detach()
    trainer.ppo_step(rollouts, seed=0)
    after = nets.logprobs(batch)[0].detach()
    assert (after - before).abs().max() > 1e-3
    sampled = []
    for rollout in rollouts:  # as generation sees it: one sequence, no boundaries
        one = pack([rollout])
        logits = nets.model(torch.tensor([rollout.token_ids]), use_cache=True).logits[0]
        sampled.append(token_logprobs(one.before_acted(logits), one.acted_ids).detach())
    torch.testing.assert_close(torch.cat(sampled), after, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(nets.reference_logprobs(batch), before, atol=2e-6, rtol=1e-6)


def test_masters_keep_steps_that_bfloat16_loses() -> None:
    weight = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], lr=1e-4)
    moved = []
    for _ in range(60):
        weight.grad = torch.ones_like(weight)
        optimizer.step(max_norm=1e9)
        moved.append(float(weight.detach()[0]))
    assert moved[0] == 1.0  # one step is below bfloat16's spacing at 1
    assert moved[-1] == pytest.approx(1 - 60e-4, abs=2e-3)


def test_gradient_that_is_not_finite_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = MasterAdamW([weight], lr=0.1)
    weight.grad = torch.tensor([1.0, float("nan"), 1.0])
    assert torch.isnan(torch.tensor(optimizer.step(max_norm=1.0)))
    assert torch.equal(weight.detach(), torch.ones(3))


def test_likelihood_rises_and_state_returns(tmp_path: Path) -> None:
    nets = networks()
    trainer = Trainer(nets, TrainerOptions(ppo=PPO, actor_lr=1e-2))
    losses = [trainer.nll_step(small_rollouts())["nll_loss"] for _ in range(6)]
    assert losses[-1] < losses[0] - 0.2
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    following = trainer.ppo_step(small_rollouts(), seed=5)
    other = Trainer(networks(), TrainerOptions(ppo=PPO, actor_lr=1e-2))
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert other.ppo_step(small_rollouts(), seed=5) == following


def test_without_a_critic_and_with_a_reference() -> None:
    options = TrainerOptions(ppo=PPO, critic=False, reference_kl=0.1, entropy=0.01, actor_lr=1e-2)
    trainer = Trainer(networks(with_critic=False), options)
    metrics = trainer.ppo_step(small_rollouts(), seed=0)
    assert metrics["reference_kl"] >= 0
    assert "value_loss" not in metrics
    with pytest.raises(UsageError, match="no critic"):
        trainer.networks.values(pack(small_rollouts()))


def test_critic_starts_at_the_mean_outcome_everywhere() -> None:
    nets = networks()
    nets.start_critic(0.75)
    assert set(nets.values(pack(small_rollouts())).tolist()) == {0.75}


def test_models_with_a_sliding_window_are_refused() -> None:
    model = small_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match="sliding_attention"):
        check_model(model)


def test_adapter_file_has_the_names_of_peft(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    networks().save_actor(tmp_path)
    state = load_file(tmp_path / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in state
    assert len(state) == 2 * 7 * 2  # two matrices, seven linear layers, two blocks


def test_constant_reward_moves_nothing() -> None:
    nets = networks()
    trainer = Trainer(nets, TrainerOptions(ppo=PPO, actor_lr=1e-2))
    nets.start_critic(1.0)
    before = [weight.detach().clone() for weight in nets.actor_weights()]
    trainer.ppo_step([replace(r, outcome=1.0) for r in small_rollouts()], seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, nets.actor_weights(), strict=True))
