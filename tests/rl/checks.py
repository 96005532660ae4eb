"""What the maths must satisfy, as functions of the modules to be checked.

Each takes the modules as one namespace, so that test_mutants.py can hand in copies with planted bugs: a
check that no bug can fail is not worth having.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import plain
import torch
from exact import surrogate_and_exact
from rows import random_batch, random_rollouts
from tiny import Tiny, packed, padded
from torch import Tensor

Check = Callable[[SimpleNamespace], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


# -- by hand: five tokens -----------------------------------------------------------------------------


def five_tokens(rl: Any) -> Any:
    """Prompt, action, observation, two actions; and two of prompt, two actions, a tail."""
    half, quarter, tenth = math.log(0.5), math.log(0.25), math.log(0.1)
    first = rl.rollouts.Rollout(
        "a",
        (11, 12, 13, 14, 15),
        (False, True, False, True, True),
        (0, half, 0, quarter, half),
        (0, 0, 1, 1, 1),
        1.0,
    )
    second = rl.rollouts.Rollout(
        "b",
        (21, 22, 23, 24, 25),
        (False, False, True, True, False),
        (0, 0, tenth, tenth, 0),
        (0, 0, 0, 0, 1),
        -1.0,
    )
    return rl.rollouts.pack([first, second])


@check
def acted_tokens_by_hand(rl: Any) -> None:
    batch = five_tokens(rl)
    assert batch.acted_ids.tolist() == [12, 14, 15, 23, 24]
    assert batch.predictor_index.tolist() == [0, 2, 3, 6, 7]
    assert batch.before_acted(torch.arange(10)).tolist() == [0, 2, 3, 6, 7]
    assert batch.acted_lengths.tolist() == [3, 2]
    assert batch.turns.tolist() == [0, 1, 1, 0, 0]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4] * 2
    swapped = batch.select(torch.tensor([1, 0]))
    assert swapped.acted_ids.tolist() == [23, 24, 12, 14, 15]
    assert batch.acted_of(torch.tensor([1, 0])).tolist() == [3, 4, 0, 1, 2]
    assert swapped.groups.tolist() == [1, 0] and swapped.outcomes.tolist() == [-1.0, 1.0]


@check
def advantages_by_hand(rl: Any) -> None:
    batch = five_tokens(rl)
    values = torch.tensor([0.5, 0.25, -0.5, 1.0, 0.0])
    rewards = rl.advantages.outcome_rewards(batch.outcomes, batch.acted_lengths)
    assert rewards.tolist() == [0.0, 0.0, 1.0, 0.0, -1.0]
    # First: deltas 0.25 - 0.5, -0.5 - 0.25, 1 + 0.5. Second: 0 - 1, -1 - 0.
    half = rl.advantages.gae(rewards, values, batch.acted_lengths, lam=0.5)
    close(half, [-0.25, 0.0, 1.5, -1.5, -1.0])
    one = rl.advantages.gae(rewards, values, batch.acted_lengths, lam=1.0)
    close(one, [0.5, 0.75, 1.5, -2.0, -1.0])
    discounted = rl.advantages.gae(rewards, values, batch.acted_lengths, gamma=0.5, lam=1.0)
    # Deltas 0.125 - 0.5, -0.25 - 0.25, 1.5; then -1, -1.
    close(discounted, [-0.375 - 0.25 + 0.375, -0.5 + 0.75, 1.5, -1.5, -1.0])
    close(rl.advantages.returns(rewards, batch.acted_lengths, gamma=0.5), [0.25, 0.5, 1.0, -0.5, -1.0])
    mixed = rl.advantages.gae(rewards, values, batch.acted_lengths, lam=torch.tensor([0.5, 1.0]))
    close(mixed, [-0.25, 0.0, 1.5, -2.0, -1.0])


@check
def value_targets_by_hand(rl: Any) -> None:
    batch = five_tokens(rl)
    values = torch.tensor([0.5, 0.25, -0.5, 1.0, 0.0])
    rewards = rl.advantages.outcome_rewards(batch.outcomes, batch.acted_lengths)
    close(rl.advantages.value_targets(rewards, values, batch.acted_lengths), [1, 1, 1, -1, -1])
    half = rl.advantages.value_targets(rewards, values, batch.acted_lengths, lam=0.5)
    close(half, [0.25, 0.25, 1.0, -0.5, -1.0])
    loss, sums = rl.losses.value_loss(
        values.double(),
        torch.tensor([1, 1, 1, -1, -1]),
        torch.tensor([1 / 3] * 3 + [0.5] * 2),
        num_trajectories=2,
    )
    # (0.25 + 0.5625 + 2.25) / 3 and (4 + 1) / 2, halved, averaged.
    close(loss, (3.0625 / 3 + 2.5) / 4, 1e-7)
    close(sums.means()["value_error"], (0.5 + 0.75 + 1.5 + 2 + 1) / 5)


@check
def length_adaptive_lambda_by_hand(rl: Any) -> None:
    lengths = torch.tensor([10, 20, 40, 400, 10_000])
    close(rl.advantages.length_adaptive_lambda(lengths), [0.0, 0.0, 0.5, 0.95, 0.998])


@check
def policy_loss_by_hand(rl: Any) -> None:
    batch = five_tokens(rl)
    probabilities = torch.tensor([0.7, 0.125, 0.5, 0.5, 0.01], dtype=torch.float64)
    logprobs = probabilities.log().requires_grad_()
    advantages = torch.tensor([1.0, -2.0, 3.0, -1.0, 1.0])
    config = rl.ppo.PpoConfig(ratio="sampler")
    terms, _ = rl.ppo.actor_terms(batch, advantages, config, recomputed=batch.sampler_logprobs)
    loss, sums = rl.losses.policy_loss(logprobs, terms, num_trajectories=2)
    # Ratios 1.4 (cut at 1.28), 0.5 (cut at 0.8), 1; then 5 (A < 0: at most 3), 0.1 (A > 0: goes through).
    close(loss, ((-1.28 + 1.6 - 3.0) / 3 + (3.0 - 0.1) / 2) / 2)
    loss.backward()
    close(logprobs.grad, [0.0, 0.0, -0.5, 0.0, -0.025])
    means = sums.means()
    close([means[name] for name in ("clip_high", "clip_low", "clip_dual")], [0.2, 0.2, 0.2])
    close([means["ratio_max"], means["ratio_min"], means["ratio"]], [5.0, 0.1, 8.0 / 5])
    close(means["ratio_outside"], 0.4)  # 5 and 0.1; 0.5 is inside
    kl = sum(r - 1 - math.log(r) for r in (1.4, 0.5, 1.0, 5.0, 0.1)) / 5
    close(means["kl"], kl)


@check
def decoupled_terms_by_hand(rl: Any) -> None:
    logs = [0.0, *(math.log(p) for p in (0.5, 0.1, 0.01, 0.5))]
    rollout = rl.rollouts.Rollout("a", (1, 2, 3, 4, 5), (False, *[True] * 4), tuple(logs), (0,) * 5, 1.0)
    batch = rl.rollouts.pack([rollout])
    recomputed = torch.tensor([0.8, 0.5, 0.9, 0.25], dtype=torch.float64).log()
    config = rl.ppo.PpoConfig(ratio="decoupled", probability_floor=0.05)
    advantages = torch.tensor([1.0, 1.0, 100.0, -1.0])
    terms, gap = rl.ppo.actor_terms(batch, advantages, config, recomputed=recomputed)
    # Weights 1.6, 5 cut to 2, left out, 0.5; the denominator counts the three kept tokens.
    logprobs = recomputed.clone().requires_grad_()
    loss, sums = rl.losses.policy_loss(logprobs, terms, num_trajectories=1)
    close(loss, -(1.6 + 2.0 - 0.5) / 3)
    loss.backward()
    close(logprobs.grad, [-1.6 / 3, -2.0 / 3, 0.0, 0.5 / 3])
    assert sums.means()["tokens"] == 3
    means = gap.means()
    close([means["floored_tokens"], means["truncated"]], [1.0, 1 / 3])
    close(means["gap"], (math.log(1.6) + math.log(5) + math.log(2)) / 3)
    close(means["gap_outside"], 1 / 3)  # 5; 0.5 is inside
    sampler = rl.ppo.PpoConfig(ratio="sampler")
    terms, _ = rl.ppo.actor_terms(batch, advantages, sampler, recomputed=recomputed)
    close(terms.denominator, batch.sampler_logprobs)
    close(terms.importance, [1.0] * 4)


@check
def baselines_by_hand(rl: Any) -> None:
    outcomes, groups = torch.tensor([3.0, -1.0, 1.0, 2.0, 1.0]), torch.tensor([0, 0, 0, 1, 2])
    close(rl.advantages.leave_one_out(outcomes, groups), [3.0, -3.0, 0.0, 0.0, 0.0])
    predictions = rl.advantages.task_mean_predictions(
        torch.tensor([1, 0, 3]), known_outcomes=outcomes, known_groups=groups
    )
    close(predictions, [2.0, 1.0, 1.2])
    explained = rl.advantages.explained_variance(torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 3.0]))
    close(explained, 0.75)
    assert math.isnan(rl.advantages.explained_variance(torch.zeros(2), torch.ones(2)))
    close(
        rl.statistics.means_by_turn(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2])).nan_to_num(9),
        [2, 9, 5],
    )


@check
def nll_and_kl_by_hand(rl: Any) -> None:
    logprobs = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64).log().requires_grad_()
    shares = rl.losses.token_shares(torch.tensor([1, 2]))
    loss, _ = rl.losses.nll_loss(logprobs, shares, num_trajectories=2)
    close(loss, (math.log(2) + (math.log(4) + math.log(8)) / 2) / 2)
    reference = torch.tensor([0.25, 0.25, 0.25], dtype=torch.float64).log()
    kl, _ = rl.losses.reference_kl_loss(logprobs, reference, shares, num_trajectories=2)
    first, third = 0.5 - 1 + math.log(2), 2 - 1 - math.log(2)
    close(kl, (first + third / 2) / 2)
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]], dtype=torch.float64)
    close(rl.losses.token_logprobs(logits, torch.tensor([0, 1])), [math.log(0.5), math.log(0.75)])
    entropies = rl.losses.token_entropies(logits)
    close(entropies, [math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)])
    bonus, _ = rl.losses.entropy_bonus(entropies, torch.tensor([1.0, 1.0]), num_trajectories=2)
    close(bonus, entropies.mean())


# -- against an independent implementation -------------------------------------------------------------


@check
def agrees_with_plain_loops(rl: Any) -> None:
    for seed in range(8):
        batch, found, rows = random_batch(rl, seed)
        for mode, lam, floor in (("sampler", 0.95, 0.0), ("decoupled", None, 0.05), ("decoupled", 0.3, 0.0)):
            config = rl.ppo.PpoConfig(
                ratio=mode,
                actor_lambda=lam,
                alpha=0.5,
                probability_floor=floor,
                gamma=0.9,
                value_target="paper",
            )
            estimates = rl.ppo.estimate(batch, found["values"], config)
            raw = [plain.gae(row, 0.9, plain.adaptive(row, 0.5) if lam is None else lam) for row in rows]
            advantages = plain.whitened(raw)
            close(estimates.advantages, [a for row in advantages for a in row], 1e-8)
            terms, _ = rl.ppo.actor_terms(batch, estimates.advantages, config, recomputed=found["old"])
            loss, _ = rl.losses.policy_loss(found["new"], terms, num_trajectories=len(rows))
            decoupled = mode == "decoupled"
            close(
                loss,
                plain.policy_loss(rows, advantages, decoupled=decoupled, floor=floor, truncation=2.0),
                1e-8,
            )
            paper = [plain.gae(row, 0.9, 0.95) for row in rows]
            targets = [
                [v + a for v, a in zip(r.values, p, strict=True)] for r, p in zip(rows, paper, strict=True)
            ]
            close(estimates.targets, [t for row in targets for t in row], 1e-8)
            value, _ = rl.losses.value_loss(
                found["new_values"], estimates.targets, estimates.shares, num_trajectories=len(rows)
            )
            close(value, plain.value_loss(rows, targets), 1e-8)
        close(rl.advantages.leave_one_out(batch.outcomes, batch.groups), plain.leave_one_out(rows))
        spread = batch.outcomes[batch.acted_trajectory]
        explained = plain.explained_variance(found["values"].tolist(), spread.tolist())
        close(rl.advantages.explained_variance(found["values"], spread), explained)


@check
def long_trajectories_agree_with_a_loop(rl: Any) -> None:
    noise = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 700, 0, 3, 1200, 17])
    size = int(lengths.sum())
    values = torch.randn(size, generator=noise, dtype=torch.float64)
    rewards = torch.randn(size, generator=noise, dtype=torch.float64)
    expected, t = torch.zeros(size, dtype=torch.float64), 0
    for length in lengths.tolist():
        after, value_after = 0.0, 0.0
        for k in range(t + length - 1, t - 1, -1):
            after = float(rewards[k]) + 0.99 * value_after - float(values[k]) + 0.99 * 0.95 * after
            expected[k], value_after = after, float(values[k])
        t += length
    close(rl.advantages.gae(rewards, values, lengths, gamma=0.99, lam=0.95), expected, 1e-10)


@check
def finite_differences(rl: Any) -> None:
    batch, found, rows = random_batch(rl, 3)
    for mode in ("sampler", "decoupled"):
        config = rl.ppo.PpoConfig(ratio=mode, actor_lambda=0.95, probability_floor=0.03)
        estimates = rl.ppo.estimate(batch, found["values"], config)
        terms, _ = rl.ppo.actor_terms(batch, estimates.advantages, config, recomputed=found["old"])

        def policy(new: Tensor, terms: Any = terms) -> Tensor:
            return rl.losses.policy_loss(new, terms, num_trajectories=len(rows))[0]

        assert torch.autograd.gradcheck(policy, found["new"].clone().requires_grad_())

    def value(new: Tensor) -> Tensor:
        return rl.losses.value_loss(new, estimates.targets, estimates.shares, num_trajectories=len(rows))[0]

    def kl(new: Tensor) -> Tensor:
        return rl.losses.reference_kl_loss(new, found["old"], estimates.shares, num_trajectories=len(rows))[0]

    assert torch.autograd.gradcheck(value, found["new_values"].clone().requires_grad_())
    assert torch.autograd.gradcheck(kl, found["new"].clone().requires_grad_())


# -- exact gradient ------------------------------------------------------------------------------------


@check
def exact_gradient(rl: Any) -> None:
    for mode in ("sampler", "decoupled"):
        surrogate, exact = surrogate_and_exact(rl, mode)
        error = (surrogate - exact).norm() / exact.norm()
        assert error < 1e-6, f"{mode}: relative error {error:.2e}"


# -- properties ----------------------------------------------------------------------------------------


@check
def gradient_is_the_same_however_it_is_cut(rl: Any) -> None:
    for dtype in (torch.float64, torch.float32):
        whole = actor_critic_gradient(rl, dtype, packed, [torch.arange(6)])
        assert whole.norm() > 1e-3
        order = torch.tensor([4, 1, 0, 5, 3, 2])
        for run in (packed, padded):
            for parts in ([order], list(order.split(1)), list(order.split(4))):
                cut = actor_critic_gradient(rl, dtype, run, parts)
                assert (cut - whole).norm() <= 1e-6 * whole.norm(), (dtype, run.__name__, len(parts))


def actor_critic_gradient(
    rl: Any, dtype: torch.dtype, run: Any, parts: list[Tensor], total: int = 6
) -> Tensor:
    """Gradients of actor and critic on one minibatch that is cut in parts, as one vector.

    Args:
        total: trajectories in the minibatch.
    """
    torch.manual_seed(7)
    actor, critic = Tiny(12).to(dtype), Tiny(12, outputs=1).to(dtype)
    batch = rl.rollouts.pack(random_rollouts(rl, 5))
    config = rl.ppo.PpoConfig(actor_lambda=0.95, probability_floor=0.03)
    with torch.no_grad():
        values = batch.before_acted(packed(critic, batch))[:, 0] + 0.1
    estimates = rl.ppo.estimate(batch, values.double(), config)
    recomputed = batch.sampler_logprobs + 0.1
    terms, _ = rl.ppo.actor_terms(batch, estimates.advantages, config, recomputed=recomputed)
    for part in parts:
        data, index = batch.select(part), batch.acted_of(part)
        logprobs = rl.losses.token_logprobs(data.before_acted(run(actor, data)), data.acted_ids)
        policy, _ = rl.losses.policy_loss(logprobs, terms.take(index), num_trajectories=total)
        new_values = data.before_acted(run(critic, data))[:, 0]
        value, _ = rl.losses.value_loss(
            new_values, estimates.targets[index], estimates.shares[index], num_trajectories=total
        )
        (policy + value).backward()
    return torch.cat([p.grad.flatten().double() for model in (actor, critic) for p in model.parameters()])


@check
def metrics_add_up_over_micro_batches(rl: Any) -> None:
    batch, found, rows = random_batch(rl, 2)
    config = rl.ppo.PpoConfig(probability_floor=0.05)
    estimates = rl.ppo.estimate(batch, found["values"], config)
    terms, _ = rl.ppo.actor_terms(batch, estimates.advantages, config, recomputed=found["old"])
    _, whole = rl.losses.policy_loss(found["new"], terms, num_trajectories=len(rows))
    parts = []
    for part in torch.arange(len(rows)).split(1):
        index = batch.acted_of(part)
        parts.append(
            rl.losses.policy_loss(found["new"][index], terms.take(index), num_trajectories=len(rows))[1]
        )
    together, expected = rl.statistics.add(parts).means(), whole.means()
    assert together.keys() == expected.keys()
    close([together[name] for name in expected], [expected[name] for name in expected])


@check
def constant_reward_moves_nothing(rl: Any) -> None:
    batch, found, rows = random_batch(rl, 1)
    batch = rl.rollouts.PackedRollouts(**{**vars_of(batch), "outcomes": torch.full_like(batch.outcomes, 0.3)})
    config = rl.ppo.PpoConfig(actor_lambda=0.95)
    flat = torch.full((batch.sampler_logprobs.numel(),), 0.1, dtype=torch.float32)
    every = [
        rl.ppo.critic_free(batch, config),
        rl.ppo.estimate(batch, torch.full_like(flat, 0.3).double(), config).advantages,
        rl.ppo.estimate(batch, flat, rl.ppo.PpoConfig(actor_lambda=1.0)).advantages,
    ]
    for advantages in every:
        terms, _ = rl.ppo.actor_terms(batch, advantages, config, recomputed=found["old"])
        new = found["new"].clone().requires_grad_()
        rl.losses.policy_loss(new, terms, num_trajectories=len(rows))[0].backward()
        assert torch.equal(new.grad, torch.zeros_like(new.grad))


def vars_of(batch: Any) -> dict[str, Tensor]:
    return {name: getattr(batch, name) for name in type(batch).__dataclass_fields__}


@check
def whitening_gives_mean_0_and_deviation_1(rl: Any) -> None:
    batch, found, _ = random_batch(rl, 4)
    advantages = rl.ppo.estimate(batch, found["values"], rl.ppo.PpoConfig(actor_lambda=0.9)).advantages
    close([advantages.mean(), advantages.std(correction=0)], [0.0, 1.0])


@check
def impossible_tokens_stay_finite(rl: Any) -> None:
    """A sampler that says probability 0, and a trainer that agrees: left out, no NaN."""
    batch, found, rows = random_batch(rl, 6)
    sampler = batch.sampler_logprobs.clone()
    sampler[0] = -torch.inf
    batch = rl.rollouts.PackedRollouts(**{**vars_of(batch), "sampler_logprobs": sampler})
    new, old = found["new"].clone(), found["old"].clone()
    new[0] = old[0] = -torch.inf
    new.requires_grad_()
    config = rl.ppo.PpoConfig(probability_floor=1e-9)
    terms, gap = rl.ppo.actor_terms(batch, found["values"], config, recomputed=old)
    loss, sums = rl.losses.policy_loss(new, terms, num_trajectories=len(rows))
    loss.backward()
    assert bool(new.grad.isfinite().all()) and new.grad[0] == 0
    assert all(math.isfinite(x) for x in [*sums.means().values(), *gap.means().values()])


@check
def clips_act_from_the_second_minibatch_on(rl: Any) -> None:
    """One minibatch with recomputed values: ratio 1, no clip. Four: the later ones clip."""
    one = clip_fractions(rl, num_minibatches=1)
    assert [(m["clip_low"], m["clip_high"], m["ratio_min"], m["ratio_max"]) for m in one] == [(0, 0, 1, 1)]
    four = clip_fractions(rl, num_minibatches=4)
    assert len(four) == 4 and four[0]["clip_low"] == four[0]["clip_high"] == 0
    assert max(m["clip_low"] + m["clip_high"] for m in four[1:]) > 0.1


def clip_fractions(rl: Any, *, num_minibatches: int) -> list[dict[str, float]]:
    torch.manual_seed(0)
    actor = Tiny(12)
    batch = rl.rollouts.pack([r for seed in range(6) for r in random_rollouts(rl, seed)])
    optimizer = torch.optim.Adam(actor.parameters(), lr=0.03)

    def logprobs(data: Any) -> Tensor:
        return rl.losses.token_logprobs(data.before_acted(packed(actor, data)), data.acted_ids)

    config = rl.ppo.PpoConfig()
    with torch.no_grad():
        terms, _ = rl.ppo.actor_terms(
            batch, rl.ppo.critic_free(batch, config), config, recomputed=logprobs(batch)
        )
    found = []
    parts = rl.ppo.minibatches(batch.num_trajectories, num_minibatches, torch.Generator().manual_seed(0))
    for part in [torch.arange(batch.num_trajectories)] if num_minibatches == 1 else parts:
        index = batch.acted_of(part)
        loss, sums = rl.losses.policy_loss(
            logprobs(batch.select(part)), terms.take(index), num_trajectories=len(part)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(sums.means())
    return found


@check
def a_critic_learns_the_outcome(rl: Any) -> None:
    """The outcome is a function of the first answer's token: a critic that is trained explains it."""
    torch.manual_seed(0)
    rollouts = [
        rl.rollouts.Rollout(
            "t", (1, 2 + a, 9, 2 + b), (False, True, False, True), (0, -1, 0, -1), (0, 0, 1, 1), float(a)
        )
        for a in range(4)
        for b in range(4)
    ]
    batch = rl.rollouts.pack(rollouts)
    critic = Tiny(12, outputs=1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)

    def values() -> Tensor:
        return batch.before_acted(packed(critic, batch))[:, 0]

    outcome = batch.outcomes[batch.acted_trajectory]
    last = batch.turns == 1
    before = rl.advantages.explained_variance(values()[last], outcome[last])
    for _ in range(60):
        estimates = rl.ppo.estimate(batch, values().detach(), rl.ppo.PpoConfig())
        loss, _ = rl.losses.value_loss(values(), estimates.targets, estimates.shares, num_trajectories=16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = rl.advantages.explained_variance(values()[last], outcome[last])
    assert before < 0.5 and after > 0.95, (float(before), float(after))
    first = values()[~last].mean()
    close(first, 1.5, 0.15)  # nothing is known before the first answer
