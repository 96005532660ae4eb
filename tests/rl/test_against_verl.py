"""The maths against verl's on random batches, where verl is installed (it brings about 125 packages)."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from modules import REAL
from rows import random_batch
from torch import Tensor

verl: Any = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed", exc_type=ImportError
)


class ActorSettings(SimpleNamespace):
    """What verl's policy loss reads of its configuration."""

    def get(self, name: str, default: object = None) -> object:
        return getattr(self, name, default)


SETTINGS = ActorSettings(
    clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0, global_batch_info={}
)


def responses(batch: Any, numbers: Tensor) -> Tensor:
    """Numbers over acted tokens in verl's form: a row a trajectory, prompts and observations left in."""
    filled = torch.zeros(batch.token_ids.numel(), dtype=torch.float64).index_put(
        (batch.acted_index,), numbers.double()
    )
    rows = torch.zeros(batch.num_trajectories, int(batch.lengths.max()), dtype=torch.float64)
    for row, (a, b) in zip(rows, pairwise(batch.offsets.tolist()), strict=True):
        row[: b - a] = filled[a:b]
    return rows


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("lam", [0.95, 1.0, 0.3])
def test_advantages_and_returns(seed: int, lam: float) -> None:
    batch, found, _ = random_batch(REAL, seed)
    mask = responses(batch, torch.ones(batch.acted_index.numel()))
    rewards = REAL.advantages.outcome_rewards(batch.outcomes, batch.acted_lengths)
    values = responses(batch, found["values"])
    whitened, returns = verl.compute_gae_advantage_return(
        responses(batch, rewards), values, mask, torch.tensor(0.97), torch.tensor(lam)
    )
    raw = REAL.advantages.gae(rewards, found["values"], batch.acted_lengths, gamma=0.97, lam=lam)
    torch.testing.assert_close(((returns - values) * mask).float(), responses(batch, raw).float())
    # verl divides by the deviation of a sample, we by that of the batch.
    size = raw.numel()
    ours = REAL.advantages.whiten(raw) * (1 - 1 / size) ** 0.5
    torch.testing.assert_close((whitened * mask).float(), responses(batch, ours).float())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("weighted", [False, True])
def test_policy_loss_and_clip_fractions(seed: int, weighted: bool) -> None:
    batch, found, rows = random_batch(REAL, seed)
    config = REAL.ppo.PpoConfig(ratio="decoupled" if weighted else "sampler")
    advantages = found["values"]
    terms, _ = REAL.ppo.actor_terms(batch, advantages, config, recomputed=found["old"])
    # Beside the plain batch, ratios far enough apart that the dual clip acts.
    for new in (found["new"], terms.denominator + 3 * found["new_values"]):
        loss, sums = REAL.losses.policy_loss(new, terms, num_trajectories=len(rows))
        mask = responses(batch, torch.ones_like(new))
        theirs, metrics = verl.compute_policy_loss_vanilla(
            responses(batch, terms.denominator),
            responses(batch, new),
            responses(batch, advantages),
            mask,
            loss_agg_mode="seq-mean-token-mean",
            config=SETTINGS,
            rollout_is_weights=responses(batch, terms.importance) if weighted else None,
        )
        torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=1e-6)
        means = sums.means()
        clipped = means["clip_low"] + means["clip_high"]
        assert metrics["actor/pg_clipfrac"] == pytest.approx(clipped, abs=1e-6)
        assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(means["clip_dual"], abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_value_loss(seed: int) -> None:
    batch, found, rows = random_batch(REAL, seed)
    estimates = REAL.ppo.estimate(batch, found["values"], REAL.ppo.PAPER)
    loss, _ = REAL.losses.value_loss(
        found["new_values"], estimates.targets, estimates.shares, num_trajectories=len(rows)
    )
    theirs, _ = verl.compute_value_loss(
        responses(batch, found["new_values"]),
        responses(batch, estimates.targets),
        responses(batch, found["values"]),
        responses(batch, torch.ones_like(found["values"])),
        cliprange_value=1e9,
        loss_agg_mode="seq-mean-token-mean",
    )
    torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=1e-6)
