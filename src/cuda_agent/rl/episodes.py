"""Episodes of the policy in training, many at once, each in a folder of its own.

An episode's folder holds ``trajectory.jsonl`` (with token ids, log-probabilities and policy version),
``result.json`` and ``candidate/``. A folder that is whole is not made again, so an interrupted batch goes on
where it was. What one episode does never ends another: a fault of ours is an ending, and is dropped later.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agent.policy import Action, EpisodeContext, Message, Policy, Role
from cuda_agent.agent.single_turn import SYSTEM, answer_files
from cuda_agent.backends import get_backend
from cuda_agent.config import Device, EpisodeConfig, Scope
from cuda_agent.errors import InfrastructureError, PolicyError, UsageError, WorkspaceError
from cuda_agent.rl.batches import Episode, read_episode
from cuda_agent.rl.gate import Gate, Gated
from cuda_agent.rl.prompts import file_prompt, observation
from cuda_agent.rl.scoring import Answer, Scorer, judge_config
from cuda_agent.rl.training_config import Level, TrainConfig
from cuda_agent.runs.run_folder import write_text
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, Observation, TrajectoryWriter, Turn
from cuda_agent.workspace.snapshot import Snapshot, freeze

PolicyFactory = Callable[[int], Policy]
"""A policy of the weights as they are now, sampling from a seed; called while the device's lease is held."""


@dataclass(frozen=True)
class Draw:
    """One episode to be made.

    Attributes:
        task: what is attempted.
        seed: of the sampler.
        folder: where the episode goes.
    """

    task: Task
    seed: int
    folder: Path


@dataclass(frozen=True)
class Limits:
    """Of an episode: turns, tokens of context, tokens of an answer."""

    max_turns: int
    context: int


class Collector:
    """Makes episodes with one scorer.

    Args:
        config: of the training.
        scorer: gives the verdicts; stays open.
    """

    def __init__(self, config: TrainConfig, scorer: Scorer) -> None:
        self._config, self._scorer = config, scorer
        self._backend = get_backend(config.judge.device, gpu=config.judge.gpu).name
        device = f"cuda:{config.judge.gpu}" if self._backend == "cuda" else "cpu"
        self._pool = config.judge.scorer if config.judge.scorer.startswith("http") else ""
        # A pool may be on this machine: its judges take the same lease.
        self._gate = Gate(device if self._pool or config.judge.scorer == "judge" else None)

    def collect(self, draws: Sequence[Draw], limits: Limits, policies: PolicyFactory) -> list[Episode]:
        """All episodes of the draws, in their order; as many at once as the configuration says.

        Raises:
            CudaAgentError: the first one that is no fault of an episode (a bad task, a missing compiler).
        """
        with ThreadPoolExecutor(self._config.rollout.parallel) as pool:
            waiting = [pool.submit(self._one, draw, limits, policies) for draw in draws]
            return [future.result() for future in waiting]

    def _one(self, draw: Draw, limits: Limits, policies: PolicyFactory) -> Episode:
        if (earlier := whole_episode(draw.folder)) is not None:
            return earlier
        shutil.rmtree(draw.folder, ignore_errors=True)
        draw.folder.mkdir(parents=True)
        with self._gate.generating():  # it may take the device's memory
            made = policies(draw.seed)
        policy = Gated(made, self._gate)
        try:
            if self._config.rollout.level is Level.WORKSPACE and limits.max_turns > 1:
                answer = self._in_workspace(draw, limits, policy)
            else:
                answer = _FileEpisode(self, draw, limits, policy).run()
        finally:
            policy.close()
        if answer is not None:
            self._judge(draw, answer)
        (draw.folder / "whole").touch()
        return read_episode(draw.folder)

    def _judge(self, draw: Draw, answer: Answer) -> None:
        if answer.snapshot is not None:
            answer.snapshot.write(draw.folder / "candidate")
        result = self._scorer.score(draw.task, answer, Scope.FULL)
        write_text(draw.folder / "result.json", result.to_json() + "\n")

    def _in_workspace(self, draw: Draw, limits: Limits, policy: Policy) -> Answer | None:
        """An episode of the agent loop with all tools; what it left in the workspace."""
        from cuda_agent.runs.episode import Episode as AgentEpisode
        from cuda_agent.runs.reporting import Silent
        from cuda_agent.runs.run_folder import RunFolder
        from cuda_agent.runs.settings import OptimizeSettings, Prepared

        backend = get_backend(Device(self._backend), gpu=self._config.judge.gpu)
        seconds = self._config.rollout.time_limit_s
        settings = OptimizeSettings(
            policy="training",
            judge=judge_config(self._config.judge),
            pool=self._pool,
            episode=EpisodeConfig(
                max_turns=limits.max_turns, max_context=limits.context, time_limit_s=seconds or None
            ),
        )
        prepared = Prepared(draw.task, settings, backend, policy)
        episode = AgentEpisode(prepared, RunFolder(draw.folder), Silent())
        ending, _ = episode.start()
        workspace = draw.folder / "workspace"
        answer: Answer | None = None
        if ending not in (Ending.TIME_LIMIT, Ending.POLICY_ERROR, Ending.SANDBOX_ERROR, Ending.INTERRUPTED):
            answer = Answer(episode.words(), _left_in(workspace, episode.starter))
        shutil.rmtree(workspace, ignore_errors=True)
        return answer

    def file_header(self, draw: Draw) -> Header:
        """Header of an episode at action level ``file``."""
        rollout, judge = self._config.rollout, self._config.judge
        return Header(
            task_hash=draw.task.hash,
            policy="training",
            backend=self._backend,
            track=str(judge.track),
            system=SYSTEM,
            prompt=file_prompt(draw.task, self._backend, judge=judge, short=rollout.short_skill),
        )

    def file_context(self, draw: Draw, limits: Limits) -> EpisodeContext:
        """Context of an episode at action level ``file``."""
        seconds, judge = self._config.rollout.time_limit_s, self._config.judge
        return EpisodeContext(
            workspace=draw.folder,
            task=draw.task,
            backend=self._backend,
            track=str(judge.track),
            precision=str(judge.precision),
            facts=asdict(get_backend(Device(self._backend), gpu=judge.gpu).facts()),
            max_context=limits.context,
            deadline=time.monotonic() + seconds if seconds else None,
        )

    def feedback(self, task: Task, answer: Answer) -> Any:
        """The public verdict that the policy is told of."""
        return self._scorer.score(task, answer, Scope.PROFILE)


class _FileEpisode:
    """Answers with whole files, each judged at once; one turn is the single-turn arm."""

    def __init__(self, collector: Collector, draw: Draw, limits: Limits, policy: Policy) -> None:
        self._collector, self._draw, self._limits, self._policy = collector, draw, limits, policy
        header = collector.file_header(draw)
        self._writer = TrajectoryWriter(draw.folder / "trajectory.jsonl", header)
        self._messages = [Message(Role.SYSTEM, header.system), Message(Role.USER, header.prompt)]
        self._context = collector.file_context(draw, limits)
        self._files: dict[str, bytes] = {}
        self._words = ""

    def run(self) -> Answer | None:
        """What is to be judged; ``None`` where the ending says nothing of the policy."""
        try:
            ending, detail = self._turns(), ""
        except PolicyError as error:
            ending, detail = Ending.POLICY_ERROR, str(error)
        except InfrastructureError as error:
            ending, detail = Ending.SANDBOX_ERROR, str(error)
        self._writer.end(ending, detail)
        if ending in (Ending.TIME_LIMIT, Ending.POLICY_ERROR, Ending.SANDBOX_ERROR):
            return None
        return self._answer()

    def _turns(self) -> Ending:
        self._policy.start(self._context, ())
        for turn in range(self._limits.max_turns):
            started = time.monotonic()
            action = self._policy.act(self._messages, ())
            self._words = action.text
            files = answer_files(action.text)
            self._files.update(files)
            last = turn + 1 == self._limits.max_turns
            stops = not files and bool(self._files)
            seen = None if last or stops or action.context_full else self._seen(files, turn)
            if action.tokens is not None:
                self._record(turn, action, seen, started)
            if self._late():
                return Ending.TIME_LIMIT
            if action.context_full:
                return Ending.CONTEXT_LIMIT
            if stops:
                return Ending.FINISHED
            if seen is not None:
                self._messages += [
                    Message(Role.ASSISTANT, action.text, tokens=action.tokens),
                    Message(Role.USER, seen),
                ]
        return Ending.FINISHED if self._limits.max_turns == 1 else Ending.TURN_LIMIT

    def _seen(self, files: object, turn: int) -> str:
        result = self._collector.feedback(self._draw.task, self._answer()) if files else None
        return observation(result, self._limits.max_turns - turn - 1)

    def _answer(self) -> Answer:
        return Answer(self._words, Snapshot(dict(self._files)) if self._files else None)

    def _late(self) -> bool:
        deadline = self._context.deadline
        return deadline is not None and time.monotonic() >= deadline

    def _record(self, turn: int, action: Action, seen: str | None, started: float) -> None:
        self._writer.turn(
            Turn(
                index=turn,
                text=action.text,
                observations=() if seen is None else (Observation("", seen),),
                tokens=action.tokens,
                usage=action.usage,
                seconds=time.monotonic() - started,
            )
        )


def whole_episode(folder: Path) -> Episode | None:
    """The episode of a folder that was finished; ``None`` where there is none."""
    if not (folder / "whole").is_file():
        return None
    try:
        return read_episode(folder)
    except UsageError:
        return None


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts and on nothing else: 31 bits."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:4]) >> 1


def _left_in(workspace: Path, starter: str) -> Snapshot | None:
    try:
        snapshot = freeze(workspace)
    except WorkspaceError:
        return None
    return None if snapshot.hash == starter else snapshot
