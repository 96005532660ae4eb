"""The stages of training, each in a folder of its own: sft, warmup, collect, rft, value, ppo.

Each reads the last one's output and goes on exactly where it was, also after kill -9: what a step draws is
a function of the seed, the stage and the step; weights, optimisers and random state come from a checkpoint.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import UsageError
from cuda_agent.rl.batches import Built, Episode, build
from cuda_agent.rl.checkpoints import load_file
from cuda_agent.rl.curriculum import draw
from cuda_agent.rl.demonstrations import demonstrations
from cuda_agent.rl.episodes import Collector, Draw, Limits, seed_of, whole_episode
from cuda_agent.rl.networks import NetworkOptions, load_networks
from cuda_agent.rl.policies import RolloutPolicies
from cuda_agent.rl.rft_filter import Rules, filter_episodes
from cuda_agent.rl.rollouts import Rollout
from cuda_agent.rl.run_log import RunLog
from cuda_agent.rl.samples import write_samples
from cuda_agent.rl.scoring import Scorer, make_scorer
from cuda_agent.rl.settings_of import network_options, trainer_options
from cuda_agent.rl.stage_data import (
    against_task_means,
    episode_facts,
    note_rates,
    num_batches,
    same_config,
    split,
    stop_ids_of,
)
from cuda_agent.rl.stage_loop import DONE, WEIGHTS, Carried, Say, StageLoop
from cuda_agent.rl.trainer import Trainer
from cuda_agent.rl.training_config import PhaseConfig, TrainConfig
from cuda_agent.runs.run_folder import write_text
from cuda_agent.task import Task
from cuda_agent.tasks.taskset import open_taskset


class StageName(StrEnum):
    """Stages in their order."""

    SFT = "sft"
    WARMUP = "warmup"
    COLLECT = "collect"
    RFT = "rft"
    VALUE = "value"
    PPO = "ppo"


class Training:
    """One run of training: a configuration and a folder.

    Args:
        root: the run's folder; made when needed, continued when it is there.
        say: told one line for each step.

    Raises:
        UsageError: the folder belongs to another configuration.
    """

    def __init__(self, config: TrainConfig, root: Path, say: Say) -> None:
        self._config, self._root, self._say = config, root, say
        root.mkdir(parents=True, exist_ok=True)
        same_config(config, root / "config.json")

    def run(self, name: StageName) -> None:
        """One stage, or what is left of it.

        Raises:
            UsageError: the stage before it is not finished.
            Collapsed: a guard stopped it.
        """
        if self.is_done(name):
            self._say(f"{name} is finished: {self._root / name}")
            return
        if reason := self._skipped(name):
            self._say(f"{name} is left out: {reason}")
            return
        stage: Callable[[], None] = {
            StageName.SFT: self._sft,
            StageName.WARMUP: self._warmup,
            StageName.COLLECT: self._collect,
            StageName.RFT: self._rft,
            StageName.VALUE: self._value,
            StageName.PPO: self._ppo,
        }[name]
        stage()

    def run_all(self) -> None:
        """All stages in order."""
        for name in StageName:
            self.run(name)

    def is_done(self, name: StageName) -> bool:
        """Whether a stage has its output."""
        return (self._root / name / DONE).is_file()

    # -- stages ----------------------------------------------------------------------------------------

    def _sft(self) -> None:
        trainer, tokenizer = self._trainer(critic=False, actor_lr=self._config.sft.lr)
        rollouts = demonstrations(Path(self._config.sft.data), tokenizer)
        self._fit(
            StageName.SFT, trainer, rollouts, epochs=self._config.sft.epochs, batch=self._config.sft.batch
        )

    def _warmup(self) -> None:
        trainer, tokenizer = self._trainer()
        self._load(trainer, StageName.SFT, optional=True)
        self._reinforce(StageName.WARMUP, self._config.warmup, trainer, tokenizer)

    def _collect(self) -> None:
        config = self._config.collect
        trainer, tokenizer = self._trainer(critic=False)
        self._load(trainer, StageName.WARMUP)
        tasks = self._tasks()
        folder = self._root / StageName.COLLECT
        draws = [
            Draw(
                tasks[number % len(tasks)],
                seed_of(self._config.run.seed, "collect", number),
                folder / "episodes" / f"{number:05d}",
            )
            for number in range(config.trajectories)
        ]
        episodes, timing = self._episodes(
            draws, Limits(config.max_turns, config.context), trainer, tokenizer, version="warmup"
        )
        built = build(episodes, reward=self._config.judge.reward)
        self._samples(StageName.COLLECT, episodes, 0)
        facts = {"step": 0, **episode_facts(episodes, built), "timing": timing}
        RunLog(folder).cut(0)
        RunLog(folder).append(facts)
        self._say(
            f"collect: {len(built.rollouts)} of {len(episodes)} trajectories, reward {facts['reward']:.3f}"
        )
        write_text(folder / DONE, json.dumps({"trajectories": len(episodes)}) + "\n")

    def _rft(self) -> None:
        config = self._config.rft
        trainer, _ = self._trainer(critic=False, actor_lr=config.lr, sum_tokens=config.sum_tokens)
        self._load(trainer, StageName.WARMUP)
        episodes = self._collected()
        rules = Rules(
            config.max_malformed, config.max_in_a_row, config.max_redundant_share, config.min_actions
        )
        filtered = filter_episodes(episodes, rules)
        (self._root / StageName.RFT).mkdir(exist_ok=True)
        write_text(
            self._root / StageName.RFT / "filter.json",
            json.dumps(
                {
                    "episodes": len(episodes),
                    "kept": len(filtered.kept),
                    "first": {str(reason): number for reason, number in filtered.first.items()},
                    "any": {str(reason): number for reason, number in filtered.any.items()},
                },
                indent=2,
            )
            + "\n",
        )
        kept = build([episodes[place] for place in filtered.kept], reward=self._config.judge.reward)
        self._say(f"rft: {len(filtered.kept)} of {len(episodes)} trajectories kept")
        self._fit(StageName.RFT, trainer, kept.rollouts, epochs=config.epochs, batch=config.batch)

    def _value(self) -> None:
        config = self._config.value
        trainer, _ = self._trainer()
        self._load(trainer, StageName.WARMUP)
        rollouts = build(self._collected(), reward=self._config.judge.reward).rollouts
        fitted, held_out = split(rollouts, config.held_out)
        if not fitted:
            raise UsageError("no trajectories to fit the critic to", "Collect more: collect.trajectories.")
        trainer.start_critic(sum(r.outcome for r in fitted) / len(fitted))
        batches = num_batches(len(fitted), config.batch)

        def step(number: int, carried: Carried) -> dict[str, Any]:
            chosen = self._batch(StageName.VALUE, fitted, number, batches, carried)
            found: dict[str, Any] = trainer.value_step(chosen)
            if (number + 1) % batches == 0 and len(held_out) > 1:
                found |= against_task_means(trainer, fitted, held_out)
            return found

        self._loop(StageName.VALUE, trainer).run(config.epochs * batches, step)

    def _ppo(self) -> None:
        trainer, tokenizer = self._trainer()
        self._load(trainer, StageName.WARMUP)
        if self._config.rft.enabled:
            self._load(trainer, StageName.RFT, parts=("actor",))
        if self._config.value.enabled and self._config.ppo.critic:
            self._load(trainer, StageName.VALUE, parts=("critic", "value_head"))
        self._reinforce(StageName.PPO, self._config.agentic, trainer, tokenizer)

    # -- parts of stages -------------------------------------------------------------------------------

    def _reinforce(self, name: StageName, phase: PhaseConfig, trainer: Trainer, tokenizer: Any) -> None:
        tasks = [(task.hash, task) for task in self._tasks()]
        limits = Limits(phase.max_turns, phase.context)
        loop = self._loop(name, trainer)
        single = phase.max_turns == 1

        def step(number: int, carried: Carried) -> dict[str, Any]:
            place = (self._config.run.seed, str(name), number, carried.rollbacks)
            drawn = draw(
                tasks,
                phase.tasks,
                rates=carried.rates,
                seed=seed_of(*place, "tasks"),
                uniform=not self._config.tasks.curriculum,
            )
            folder = self._root / name / "episodes" / f"step-{number:06d}-{carried.rollbacks}"
            draws = [
                Draw(task, seed_of(*place, "episode", index), folder / f"{index:05d}")
                for index, task in enumerate(task for task in drawn for _ in range(phase.samples))
            ]
            version = f"{name}-{number}-{carried.rollbacks}"
            episodes, timing = self._episodes(draws, limits, trainer, tokenizer, version=version)
            built = self._built(episodes, single, trainer, tokenizer)
            facts = {**episode_facts(episodes, built), "timing": timing}
            self._samples(name, episodes, number)
            note_rates(carried, built)
            if not built.rollouts:
                return facts
            if number == 0:
                self._first_critic(name, trainer, built)
            critic_only = number < phase.critic_only_steps
            started = time.monotonic()
            facts |= trainer.ppo_step(built.rollouts, seed=seed_of(*place, "split"), critic_only=critic_only)
            timing["update_s"] = time.monotonic() - started
            return facts

        loop.run(phase.steps, step)

    def _samples(self, name: StageName, episodes: Sequence[Episode], number: int) -> None:
        path = self._root / name / "samples" / f"step-{number:06d}.md"
        write_samples(episodes, path, kind=self._config.judge.reward)

    def _first_critic(self, name: StageName, trainer: Trainer, built: Built) -> None:
        """A critic that nobody fitted yet begins at the mean outcome of the first batch."""
        fitted = name is StageName.PPO and (self._config.value.enabled or self.is_done(StageName.WARMUP))
        if not fitted and self._config.ppo.critic:
            trainer.start_critic(sum(r.outcome for r in built.rollouts) / len(built.rollouts))

    def _built(self, episodes: Sequence[Episode], single: bool, trainer: Trainer, tokenizer: Any) -> Built:
        stop_ids = stop_ids_of(trainer.networks.model, tokenizer) if single else None
        return build(episodes, reward=self._config.judge.reward, stop_ids=stop_ids)

    def _episodes(
        self, draws: Sequence[Draw], limits: Limits, trainer: Trainer, tokenizer: Any, *, version: str
    ) -> tuple[list[Episode], dict[str, float]]:
        """Episodes, and where their time went."""
        started = time.monotonic()
        collector = Collector(self._config, self._scorer)
        model = trainer.networks.model
        with RolloutPolicies(
            model, tokenizer, self._config, context=limits.context, version=version
        ) as policies:
            episodes = collector.collect(draws, limits, policies)
        return episodes, {"episodes_s": time.monotonic() - started, **policies.facts()}

    def _fit(
        self, name: StageName, trainer: Trainer, rollouts: Sequence[Rollout], *, epochs: int, batch: int
    ) -> None:
        if not rollouts:
            raise UsageError(f"{name} has nothing to learn from", "Every trajectory was filtered out.")
        batches = num_batches(len(rollouts), batch)

        def step(number: int, carried: Carried) -> dict[str, Any]:
            return dict(trainer.nll_step(self._batch(name, rollouts, number, batches, carried)))

        self._loop(name, trainer).run(epochs * batches, step)

    def _batch(
        self, name: StageName, rollouts: Sequence[Rollout], number: int, batches: int, carried: Carried
    ) -> list[Rollout]:
        """The rollouts of a step: each epoch in an order of its own."""
        epoch, place = divmod(number, batches)
        seed = seed_of(self._config.run.seed, str(name), "epoch", epoch, carried.rollbacks)
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(seed))
        return [rollouts[int(index)] for index in order.tensor_split(batches)[place]]

    def _loop(self, name: StageName, trainer: Trainer) -> StageLoop:
        return StageLoop(self._root / name, trainer, self._config, self._say)

    def _collected(self) -> list[Episode]:
        if not self.is_done(StageName.COLLECT):
            raise _missing(StageName.COLLECT)
        folders = sorted((self._root / StageName.COLLECT / "episodes").iterdir())
        return [episode for folder in folders if (episode := whole_episode(folder)) is not None]

    def _trainer(self, *, critic: bool = True, **changes: Any) -> tuple[Trainer, Any]:
        torch.manual_seed(self._config.run.seed)
        options: NetworkOptions = network_options(self._config, critic=critic)
        networks, tokenizer = load_networks(
            Path(self._config.model.path), options, device=self._device(), dtype=self._config.model.dtype
        )
        return Trainer(networks, replace(trainer_options(self._config), **changes)), tokenizer

    def _device(self) -> str:
        if self._config.model.device != "auto":
            return self._config.model.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def _load(
        self,
        trainer: Trainer,
        name: StageName,
        *,
        parts: tuple[str, ...] = ("actor", "critic", "value_head"),
        optional: bool = False,
    ) -> None:
        """Weights of a finished stage, and masters with them."""
        path = self._root / name / WEIGHTS
        if not path.is_file():
            if optional and self._skipped(name):
                return
            raise _missing(name)
        state = load_file(path, device=trainer.device)
        trainer.load_weights({part: weights for part, weights in state.items() if part in parts})

    def _tasks(self) -> list[Task]:
        entries = open_taskset(self._config.tasks.source, limit=self._config.tasks.limit or None).entries
        return [entry.task for entry in entries]

    def _skipped(self, name: StageName) -> str:
        if name is StageName.SFT and not self._config.sft.data:
            return "sft.data names no demonstrations"
        if name is StageName.RFT and not self._config.rft.enabled:
            return "rft.enabled is false"
        if name is StageName.VALUE and not (self._config.value.enabled and self._config.ppo.critic):
            return "value.enabled or ppo.critic is false"
        return ""

    @functools.cached_property
    def _scorer(self) -> Scorer:
        return make_scorer(self._config.judge)

    def close(self) -> None:
        """Free the judge's processes; may run twice."""
        if "_scorer" in self.__dict__:
            self._scorer.close()


def _missing(name: StageName) -> UsageError:
    return UsageError(f"stage {name} is not finished in this run", f"First: cuda-agent train {name}.")
