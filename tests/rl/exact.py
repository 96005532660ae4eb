"""The gradient of the expected reward by enumeration, and the surrogate's gradient over the same episodes.

Two tasks, two turns: two sampled tokens, an observation whose ids and length depend on them, one sampled
token. Every token sequence has an outcome of its own. All are enumerated, so the surrogate, weighted by the
probability of each, must have exactly the gradient of E[R], with a critic that knows nothing (lambda 1).
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from tiny import Tiny, padded
from torch import Tensor

from cuda_agent.trajectory import Ending, Header, TokenRecord, Trajectory, Turn

NUM_ACTIONS = 3
PROMPTS = ((0,), (1, 2))
NUM_ACTED = 3


def observation(first: int, second: int) -> tuple[int, ...]:
    """Ids that the policy could sample too, as the prompts: a wrong mask meets no index error."""
    return (first,) if second % 2 else (second, 1)


def surrogate_and_exact(rl: Any, mode: str) -> tuple[Tensor, Tensor]:
    """Gradients of the policy's parameters, as vectors: minus the surrogate loss's, and E[R]'s."""
    torch.manual_seed(1)
    actor = Tiny(8, outputs=NUM_ACTIONS).double()
    critic = Tiny(8, outputs=1).double()
    for parameter in (*actor.parameters(), *critic.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    sequences = list(itertools.product(range(len(PROMPTS)), *[range(NUM_ACTIONS)] * NUM_ACTED))
    chance = random.Random(0)
    outcomes = [chance.choice([-1.0, 1.0, 2.0, 3.0]) for _ in sequences]
    logprobs = torch.stack([sequence_logprobs(actor, *sequence) for sequence in sequences])
    expected = (logprobs.sum(1).exp() * torch.tensor(outcomes)).sum() / len(PROMPTS)
    exact = flat_gradient(expected, actor)
    trajectories = [trajectory(sequence, logprobs[i].tolist()) for i, sequence in enumerate(sequences)]
    rollouts = [
        rl.batches.rollout_of(one, outcome) for one, outcome in zip(trajectories, outcomes, strict=True)
    ]
    loss = surrogate(rl, mode, rl.rollouts.pack(rollouts), (actor, critic), logprobs.detach())
    return -flat_gradient(loss, actor), exact


def surrogate(rl: Any, mode: str, batch: Any, models: tuple[Tiny, Tiny], logprobs: Tensor) -> Tensor:
    """The policy loss with each trajectory weighted by its probability rather than sampled."""
    actor, critic = models
    config = rl.ppo.PpoConfig(ratio=mode, actor_lambda=1.0, whiten=False)
    values = batch.before_acted(padded(critic, batch))[:, 0].detach()
    new = rl.losses.token_logprobs(batch.before_acted(padded(actor, batch)), batch.acted_ids)
    estimates = rl.ppo.estimate(batch, values, config)
    terms, _ = rl.ppo.actor_terms(batch, estimates.advantages, config, recomputed=new)
    probabilities = logprobs.sum(1).exp()[batch.acted_trajectory]
    weighted = type(terms)(
        terms.advantages, terms.denominator, terms.importance, terms.shares * probabilities * NUM_ACTED
    )
    loss: Tensor = rl.losses.policy_loss(new, weighted, num_trajectories=len(PROMPTS))[0]
    return loss


def sequence_logprobs(actor: Tiny, task: int, first: int, second: int, third: int) -> Tensor:
    """Log-probabilities [3] of the sampled tokens of one sequence, read off one row."""
    prompt, seen = PROMPTS[task], observation(first, second)
    ids = torch.tensor([[*prompt, first, second, *seen, third]])
    size = ids.shape[1]
    causal = torch.ones(1, size, size, dtype=torch.bool).tril()
    logprobs = actor(ids, torch.arange(size)[None], causal)[0].log_softmax(-1)
    at = len(prompt) - 1
    return torch.stack([logprobs[at, first], logprobs[at + 1, second], logprobs[size - 2, third]])


def trajectory(sequence: tuple[int, ...], logprobs: list[float]) -> Trajectory:
    """The episode as it would be recorded."""
    task, first, second, third = sequence
    records = (
        TokenRecord(PROMPTS[task], (first, second), tuple(logprobs[:2]), "v0"),
        TokenRecord(observation(first, second), (third,), tuple(logprobs[2:]), "v0"),
    )
    header = Header(f"task{task}", "tiny", "cpu", "matched", "", "")
    turns = tuple(Turn(index, "", tokens=record) for index, record in enumerate(records))
    return Trajectory(header, turns, Ending.FINISHED)


def flat_gradient(loss: Tensor, model: Tiny) -> Tensor:
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), grads, strict=True)]
    return torch.cat([g.flatten() for g in filled])
