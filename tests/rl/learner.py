"""Multi-turn PPO on the world of kernel_choice.py, by cuda_agent.rl from recorded tokens to losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from kernel_choice import CONSTANT_IDS, KERNELS, NUM_IDS, PROMPT, WRITING_IDS, World, answer_of, kernel_of
from tiny import Tiny, padded
from torch import Tensor

from cuda_agent.rl.batches import Episode, build
from cuda_agent.rl.losses import policy_loss, token_logprobs, value_loss
from cuda_agent.rl.ppo import PpoConfig, actor_terms, estimate, minibatches, pack
from cuda_agent.rl.rollouts import PackedRollouts
from cuda_agent.trajectory import Ending, Header, TokenRecord, Trajectory, Turn

CONFIG = PpoConfig(actor_lambda=0.95)  # four tokens: too short for the length-adaptive one
NUM_MINIBATCHES = 4
Outcomes = Callable[[Tensor, torch.Generator], Tensor]


def as_judged(outcomes: Tensor, _: torch.Generator) -> Tensor:
    return outcomes


@dataclass(frozen=True)
class Settings:
    """Of one training run; ``outcomes`` is what becomes of a batch's rewards before they are learned from."""

    seed: int
    steps: int = 40
    episodes_per_task: int = 24
    actor_lr: float = 3e-3
    critic_lr: float = 1e-2
    outcomes: Outcomes = as_judged


class Learner:
    """A policy, a critic, and their optimiser."""

    def __init__(self, world: World, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.world, self.settings = world, settings
        self.actor, self.critic = Tiny(NUM_IDS), Tiny(NUM_IDS, outputs=1)
        for head in (self.actor.head, self.critic.head):  # begins uniform, and with values of 0
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
        self.optimizer = torch.optim.Adam(
            [
                {"params": self.actor.parameters(), "lr": settings.actor_lr},
                {"params": self.critic.parameters(), "lr": settings.critic_lr},
            ]
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.clipped: list[float] = []

    def train(self) -> Learner:
        """All steps; each on new episodes."""
        for step in range(self.settings.steps):
            episodes = self.sample(f"step{step}")
            built = build(episodes)
            assert len(built.rollouts) == len(episodes)
            batch = pack(built.rollouts)
            self.update(replace(batch, outcomes=self.settings.outcomes(batch.outcomes, self.generator)))
        return self

    def update(self, batch: PackedRollouts) -> None:
        """One PPO step of several minibatches."""
        with torch.no_grad():
            recomputed, values = self.logprobs(batch), self.values(batch)
        estimates = estimate(batch, values, CONFIG)
        terms, gap = actor_terms(batch, estimates.advantages, CONFIG, recomputed=recomputed)
        assert gap.means()["gap"] < 1e-5  # what the sampler recorded is what the trainer computes
        for part in minibatches(batch.num_trajectories, NUM_MINIBATCHES, self.generator):
            data, index = batch.select(part), batch.acted_of(part)
            policy, sums = policy_loss(self.logprobs(data), terms.take(index), num_trajectories=len(part))
            value, _ = value_loss(
                self.values(data),
                estimates.targets[index],
                estimates.shares[index],
                num_trajectories=len(part),
            )
            self.optimizer.zero_grad()
            (policy + value).backward()
            self.optimizer.step()
            means = sums.means()
            self.clipped.append(means["clip_low"] + means["clip_high"])

    def logprobs(self, batch: PackedRollouts) -> Tensor:
        logits = batch.before_acted(padded(self.actor, batch))
        return token_logprobs(allowed_only(logits, batch.before_acted(batch.token_ids)), batch.acted_ids)

    def values(self, batch: PackedRollouts) -> Tensor:
        return batch.before_acted(padded(self.critic, batch))[:, 0]

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for m in (self.actor, self.critic) for p in m.parameters()]

    # -- episodes -------------------------------------------------------------------------------------

    def sample(self, version: str) -> list[Episode]:
        """Episodes of two turns, as they would be recorded, each with the verdict on its last kernel."""
        tasks = [t for t in range(len(self.world.judged)) for _ in range(self.settings.episodes_per_task)]
        contexts: list[list[int]] = [[PROMPT] for _ in tasks]
        records: list[list[TokenRecord]] = [[] for _ in tasks]
        given: list[tuple[int, ...]] = [(PROMPT,) for _ in tasks]
        for _ in range(2):
            first, first_logprobs = self._draw(contexts)
            contexts = [[*c, i] for c, i in zip(contexts, first, strict=True)]
            second, second_logprobs = self._draw(contexts)
            contexts = [[*c, i] for c, i in zip(contexts, second, strict=True)]
            for n, task in enumerate(tasks):
                answer = (first[n], second[n])
                logprobs = (first_logprobs[n], second_logprobs[n])
                records[n].append(TokenRecord(given[n], answer, logprobs, version))
                given[n] = self.world.judged[task][kernel_of(answer)].observation
            contexts = [[*c, *seen] for c, seen in zip(contexts, given, strict=True)]
        return [self._episode(task, turns) for task, turns in zip(tasks, records, strict=True)]

    def _draw(self, contexts: Sequence[Sequence[int]]) -> tuple[list[int], list[float]]:
        logprobs = self.next_logprobs(contexts)
        ids = torch.multinomial(logprobs.exp(), 1, generator=self.generator)
        return ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist()

    @torch.no_grad()
    def next_logprobs(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities [contexts, ids] of the token that comes next."""
        lengths = torch.tensor([len(context) for context in contexts])
        size = int(lengths.max())
        ids = torch.tensor([[*context, *[PROMPT] * (size - len(context))] for context in contexts])
        causal = torch.ones(size, size, dtype=torch.bool).tril().expand(len(contexts), -1, -1)
        logits = self.actor(ids, torch.arange(size).expand_as(ids), causal)
        rows = torch.arange(len(contexts))
        return allowed_only(logits[rows, lengths - 1], ids[rows, lengths - 1]).log_softmax(-1)

    def _episode(self, task: int, records: Sequence[TokenRecord]) -> Episode:
        turns = tuple(Turn(index, "", tokens=record) for index, record in enumerate(records))
        header = Header(self.world.task_hashes[task], "tiny", "cpu", "matched", "", "")
        last = self.world.judged[task][kernel_of(records[-1].completion_ids)]
        return Episode(Trajectory(header, turns, Ending.TURN_LIMIT), last.result)

    # -- exact values ---------------------------------------------------------------------------------

    def exact(self) -> tuple[float, float]:
        """E[R] and P(R >= 2) of the policy, summed over all tasks, answers and observations."""
        opening = self._kernel_probabilities([[PROMPT]])[0]
        expected = reached = 0.0
        for judged in self.world.judged:
            contexts = [[PROMPT, *answer_of(k), *judged[k].observation] for k in range(len(KERNELS))]
            last = opening @ self._kernel_probabilities(contexts)
            rewards = torch.tensor([kernel.reward for kernel in judged], dtype=torch.float64)
            expected += float(last @ rewards) / len(self.world.judged)
            reached += float(last @ (rewards >= 2).double()) / len(self.world.judged)
        return expected, reached

    def _kernel_probabilities(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Probability of each kernel as the next answer: float64 [contexts, kernels]."""
        first = self.next_logprobs(contexts)
        longer = [[*context, i] for context in contexts for i in CONSTANT_IDS]
        second = self.next_logprobs(longer).view(len(contexts), len(CONSTANT_IDS), -1)
        both = first[:, list(CONSTANT_IDS), None] + second[:, :, list(WRITING_IDS)]
        return both.flatten(1).double().exp()


def allowed_only(logits: Tensor, before: Tensor) -> Tensor:
    """Logits of ids that may not follow ``before`` made impossible: a constant, then a way of writing."""
    allowed = torch.zeros(2, NUM_IDS, dtype=torch.bool)
    allowed[0, list(CONSTANT_IDS)] = True
    allowed[1, list(WRITING_IDS)] = True
    is_constant = torch.isin(before, torch.tensor(CONSTANT_IDS)).long()
    return logits.masked_fill(~allowed[is_constant], -1e9)
