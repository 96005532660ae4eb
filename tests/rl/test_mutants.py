"""Bugs planted in copies of the sources: each must fail the check that is named for it.

In most of these a policy still learns something, so no learning curve would tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import CHECKS
from modules import mutant

# name: (module, text, what it becomes, check that must fail)
MUTANTS = {
    "observation trained as action": (
        "batches",
        "acted += [False] * num_given + [True] * num_acted",
        "acted += [index > 0] * num_given + [True] * num_acted",
        "exact_gradient",
    ),
    "mask shifted": (
        "rollouts",
        "return self.acted.nonzero().flatten()",
        "return self.acted.roll(-1).nonzero().flatten()",
        "exact_gradient",
    ),
    "wrong sign": (
        "losses",
        "advantages = terms.advantages.detach()",
        "advantages = -terms.advantages.detach()",
        "exact_gradient",
    ),
    "value read after the token": (
        "ppo",
        "    advantages = gae(rewards, values, lengths, gamma",
        "    advantages = gae(rewards, values.roll(-1), lengths, gamma",
        "exact_gradient",
    ),
    "model read at the token": (
        "rollouts",
        "return outputs[self.predictor_index]",
        "return outputs[self.acted_index]",
        "exact_gradient",
    ),
    "advantage cut at the observation": (
        "ppo",
        "    advantages = gae(rewards, values, lengths, gamma",
        "    turns = batch.acted_trajectory * 1000 + batch.turns\n"
        "    lengths = torch.unique_consecutive(turns, return_counts=True)[1]\n"
        "    advantages = gae(rewards, values, lengths, gamma",
        "exact_gradient",
    ),
    "reward on every token": (
        "advantages",
        "    rewards[lengths.cumsum(0)[some] - 1] = outcomes[some].double()",
        "    rewards += spread(outcomes.double(), lengths)",
        "exact_gradient",
    ),
    "dead critic: no gradient": (
        "losses",
        "loss = (shares.to(wide.dtype) / num_trajectories * 0.5 * error.square()).sum()",
        "loss = 0 * wide.sum() + (0.5 * error.square().mean()).detach()",
        "a_critic_learns_the_outcome",
    ),
    "dead critic: targets of 0": (
        "ppo",
        "return Estimates(_whitened(advantages, batch, config), targets,",
        "return Estimates(_whitened(advantages, batch, config), 0 * targets,",
        "a_critic_learns_the_outcome",
    ),
    "dead critic: fitted to itself": (
        "advantages",
        "        return returns(rewards, lengths, gamma=gamma)",
        "        return values.detach().double()",
        "a_critic_learns_the_outcome",
    ),
    "bootstrap past the end": (
        "advantages",
        "    following = torch.cat([values[1:], values.new_zeros(1)]) * goes_on",
        "    following = torch.cat([values[1:], values.new_zeros(1)])",
        "advantages_by_hand",
    ),
    "trajectories run into each other": (
        "advantages",
        "    goes_on[with_zero(lengths.cumsum(0))[1:][lengths > 0] - 1] = 0.0",
        "    goes_on[-1:] = 0.0",
        "advantages_by_hand",
    ),
    "mean over the part, not the trajectory": (
        "losses",
        "    weights = (terms.shares * terms.importance",
        "    weights = (terms.shares / terms.shares.sum() * terms.importance",
        "gradient_is_the_same_however_it_is_cut",
    ),
    "floored tokens stay in the denominator": (
        "losses",
        "counts = running[ends[1:]] - running[ends[:-1]]",
        "counts = lengths",
        "decoupled_terms_by_hand",
    ),
    "no truncation": (
        "ppo",
        "    importance = importance.clamp(max=config.truncation)",
        "    importance = importance.clamp(max=1e9)",
        "decoupled_terms_by_hand",
    ),
    "bounds swapped": (
        "losses",
        "clipped = -advantages * ratio.clamp(1.0 - clipping.low, 1.0 + clipping.high)",
        "clipped = -advantages * ratio.clamp(1.0 - clipping.high, 1.0 + clipping.low)",
        "policy_loss_by_hand",
    ),
    "no dual clip": (
        "losses",
        "torch.where(advantages < 0, -advantages * clipping.dual, torch.inf)",
        "torch.where(advantages < 0, torch.inf, torch.inf)",
        "policy_loss_by_hand",
    ),
    "clip the other way": (
        "losses",
        "torch.maximum(-advantages * ratio, clipped)",
        "torch.minimum(-advantages * ratio, clipped)",
        "policy_loss_by_hand",
    ),
    "rounding whitened": (
        "advantages",
        "constant = deviation <= _ROUNDING * moments.scale",
        "constant = deviation < 0 * moments.scale",
        "constant_reward_moves_nothing",
    ),
    "whitening without the mean": (
        "advantages",
        "return (advantages.double() - mean) * scale",
        "return advantages.double() * scale",
        "whitening_gives_mean_0_and_deviation_1",
    ),
    "baseline with itself in it": (
        "advantages",
        "others = (counts[groups] - 1).clamp(min=1)",
        "others = counts[groups]",
        "baselines_by_hand",
    ),
    "ratio against the policy itself": (
        "losses",
        "wide - terms.denominator.to(wide.dtype), 0.0)",
        "wide - wide.detach(), 0.0)",
        "clips_act_from_the_second_minibatch_on",
    ),
    "impossible tokens not masked": (
        "losses",
        "log_ratio = torch.where(kept, wide - terms.denominator.to(wide.dtype), 0.0)",
        "log_ratio = wide - terms.denominator.to(wide.dtype)",
        "impossible_tokens_stay_finite",
    ),
    "lambda of the wrong length": (
        "advantages",
        "return (1.0 - 1.0 / (alpha * lengths",
        "return (1.0 - 1.0 / (alpha * lengths.max() + 0 * lengths",
        "agrees_with_plain_loops",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_fails_its_check(name: str, tmp_path: Path) -> None:
    module, old, new, check = MUTANTS[name]
    with mutant(tmp_path, module, old, new) as rl, pytest.raises(AssertionError):
        CHECKS[check](rl)


def test_a_copy_without_a_bug_passes(tmp_path: Path) -> None:
    """What the checks of this file refuse is the bug, not the copy."""
    with mutant(tmp_path, "ppo", "PAPER = PpoConfig(", "PAPER = PpoConfig(") as rl:
        for name in sorted({check for *_, check in MUTANTS.values()}):
            CHECKS[name](rl)
