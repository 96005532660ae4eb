"""One attempt at one task, from wherever an earlier process left it, to its line.

The run folder is that of ``cuda-agent optimize``; ``last.json`` beside ``result.json`` holds the verdict on
the final state of the workspace where that is not the version chosen.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from cuda_agent.config import Device, EpisodeConfig, JudgeConfig, Precision, Scope, Track
from cuda_agent.errors import CudaAgentError, TaskError, UsageError, WorkspaceError
from cuda_agent.evals.metrics_records import EvalAttempt
from cuda_agent.evals.run_files import Arm, EvalFolder, EvalSettings
from cuda_agent.evals.spent import Spent, spent_on
from cuda_agent.result import Result
from cuda_agent.runs.optimization import optimize_task, resume_run
from cuda_agent.runs.reporting import Reporter
from cuda_agent.runs.run_folder import RunFolder, read_json, write_text
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.trajectory import Ending, Trajectory, read_trajectory

_BROKEN = (Ending.POLICY_ERROR, Ending.SANDBOX_ERROR)
_OPEN = (None, Ending.INTERRUPTED, *_BROKEN)
_AT_ONCE_S = 1e-3
_MAX_WORDS = 500


def run_attempt(folder: EvalFolder, key: str, sample: int, *, reporter: Reporter) -> EvalAttempt | None:
    """Make or finish one attempt.

    Returns:
        Its line; ``None`` when the user interrupted it (what was made is on disk).
    """
    return _Attempt(folder, key, sample, reporter).run()


def optimize_settings(settings: EvalSettings, sample: int) -> OptimizeSettings:
    """The settings of one attempt's run; a sampler's seed differs from sample to sample."""
    options = dict(settings.policy_options)
    if "seed" in options:
        options["seed"] += sample
    for name, price in (("prompt_price", settings.price_in), ("completion_price", settings.price_out)):
        if price is not None:
            options[name] = price
    return OptimizeSettings(
        policy=settings.policy,
        policy_options=options,
        judge=JudgeConfig(
            device=Device(settings.device),
            track=Track(settings.track),
            precision=Precision(settings.precision),
            gpu=settings.gpu,
        ),
        episode=EpisodeConfig(
            max_turns=settings.max_turns,
            max_context=settings.max_context,
            time_limit_s=settings.time_limit_s,
        ),
        pool=settings.pool,
    )


class _Attempt:
    def __init__(self, folder: EvalFolder, key: str, sample: int, reporter: Reporter) -> None:
        self._folder, self._key, self._sample, self._reporter = folder, key, sample, reporter
        self._eval = folder.settings()
        self._settings = optimize_settings(self._eval, sample)
        self._run = RunFolder(folder.attempt_folder(key, sample))
        self._started = time.monotonic()
        self._earlier_s = 0.0
        self._ended: Trajectory | None = None

    def run(self) -> EvalAttempt | None:
        """See :func:`run_attempt`."""
        try:
            best = self._agent() if self._eval.arm is Arm.AGENT else self._single_turn()
            trajectory = self._trajectory()
            if trajectory is not None and trajectory.ending is Ending.INTERRUPTED:
                return None
            last = self._last(trajectory, best)
        except TaskError as error:
            return self._line(None, None, task_error=str(error))
        except CudaAgentError as error:
            return self._line(None, None, infrastructure=str(error))
        return self._line(best, last)

    # -- arms ---------------------------------------------------------------------------------

    def _agent(self) -> Result | None:
        """Verdict on the best version; a finished episode is not run again."""
        trajectory = self._left_over()
        if trajectory is None:
            task = self._folder.load_task(self._key)
            outcome = optimize_task(task, self._settings, out=self._run.root, reporter=self._reporter)
            return outcome.result
        if trajectory.ending not in _OPEN and (known := self._known_result()) is not None:
            return known
        return resume_run(self._run.root, self._what_is_left(trajectory), reporter=self._reporter).result

    def _single_turn(self) -> Result:
        from cuda_agent.evals.single_turn import ask_once, judge_answer

        trajectory = self._left_over()
        if trajectory is not None and (known := self._known_result()) is not None:
            return known
        if trajectory is None or trajectory.ending is None:
            shutil.rmtree(self._run.root, ignore_errors=True)
            task = self._folder.load_task(self._key)
            ask_once(task, self._settings, out=self._run.root, reporter=self._reporter)
            trajectory = read_trajectory(self._run.trajectory)
        return judge_answer(trajectory.turns[0].text, self._run, self._resolved(), reporter=self._reporter)

    def _left_over(self) -> Trajectory | None:
        """What an earlier process left; what cannot be gone on with is removed."""
        try:
            RunFolder.open(self._run.root)
            trajectory = read_trajectory(self._run.trajectory)
        except UsageError:
            shutil.rmtree(self._run.root, ignore_errors=True)
            return None
        self._earlier_s = sum(turn.seconds for turn in trajectory.turns)
        return trajectory

    def _known_result(self) -> Result | None:
        result = self._run.load_result()
        return None if result is None or result.infrastructure is not None else result

    def _what_is_left(self, trajectory: Trajectory) -> OptimizeSettings:
        """Settings for the rest of an episode: the time used is used; one that ended has no turn left."""
        limit_s = self._settings.episode.time_limit_s
        if trajectory.ending not in (*_OPEN, Ending.FINISHED):
            self._ended, limit_s = trajectory, _AT_ONCE_S
        elif limit_s is not None:
            limit_s = max(_AT_ONCE_S, limit_s - self._earlier_s)
        return replace(self._settings, episode=replace(self._settings.episode, time_limit_s=limit_s))

    def _resolved(self) -> OptimizeSettings:
        return OptimizeSettings.from_dict(self._run.load_settings())

    # -- the final state ----------------------------------------------------------------------

    def _last(self, trajectory: Trajectory | None, best: Result | None) -> Result | None:
        """Verdict on the workspace as the episode left it."""
        if best is None or trajectory is None or trajectory.ending in _BROKEN:
            return None
        if self._eval.arm is Arm.SINGLE_TURN:
            return best
        from cuda_agent.runs.conclusion import nothing_written
        from cuda_agent.workspace.snapshot import MODEL_FILE, freeze

        task, contract, workspace = self._run.load_task(), self._resolved().judge, self._run.workspace
        try:
            final = freeze(workspace).hash
        except WorkspaceError as error:
            if not (workspace / MODEL_FILE).is_file():
                return nothing_written(task, contract, str(error))
            return self._judge_last()
        if final == best.candidate_hash:
            return best
        if final == trajectory.header.settings.get("starter"):
            return nothing_written(task, contract, "the workspace was left as it had been laid out")
        return self._judge_last()

    def _judge_last(self) -> Result:
        from cuda_agent.pool.remote import reach_verdict

        path = self._run.root / "last.json"
        if path.is_file() and (known := Result.from_dict(read_json(path))).infrastructure is None:
            return known
        self._reporter.say("judging the final state of the workspace by the private suite")
        result = reach_verdict(
            self._run.workspace,
            task=self._run.load_task(),
            config=self._resolved().judge,
            scope=Scope.FULL,
            pool=self._settings.pool,
        )
        write_text(path, result.to_json(indent=2) + "\n")
        return result

    # -- the line -----------------------------------------------------------------------------

    def _trajectory(self) -> Trajectory | None:
        try:
            return read_trajectory(self._run.trajectory)
        except UsageError:
            return None

    def _line(
        self,
        best: Result | None,
        last: Result | None,
        *,
        infrastructure: str | None = None,
        task_error: str | None = None,
    ) -> EvalAttempt:
        trajectory = self._trajectory()
        ended = self._ended or trajectory
        ending, detail = (ended.ending, ended.ending_detail) if ended else (None, "")
        if ending in _BROKEN:
            infrastructure = infrastructure or detail or str(ending)
        for result in (best, last):
            infrastructure = infrastructure or (result.infrastructure if result else None)
        spent = self._spent(trajectory)
        judged = {**spent.judged, **({"full": 1} if best and best.candidate_hash else {})}
        return EvalAttempt(
            id=self._key,
            sample=self._sample,
            ending=str(ending or ""),
            best=best,
            last=last,
            judge_calls=sum(judged.values()),
            turns=spent.turns,
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
            seconds=self._earlier_s + time.monotonic() - self._started,
            cost_usd=spent.cost_usd,
            infrastructure=infrastructure,
            judged=judged,
            task_error=task_error,
            detail=detail,
            words=_words(trajectory),
        )

    def _spent(self, trajectory: Trajectory | None) -> Spent:
        return spent_on(
            trajectory.turns if trajectory else (),
            self._run.snapshots,
            price_in=self._eval.price_in,
            price_out=self._eval.price_out,
        )


def _words(trajectory: Trajectory | None) -> str:
    turns = reversed(trajectory.turns) if trajectory else ()
    text = next((turn.text.strip() for turn in turns if turn.text.strip()), "")
    return text if len(text) <= _MAX_WORDS else text[:_MAX_WORDS] + "..."


def attempt_file(folder: EvalFolder, key: str, sample: int) -> Path:
    """Where an attempt's process leaves its line, beside its run folder."""
    return folder.attempt_folder(key, sample).with_name(f"{sample}.json")


def log_file(folder: EvalFolder, key: str, sample: int) -> Path:
    """What an attempt's process says, beside its run folder."""
    return folder.attempt_folder(key, sample).with_name(f"{sample}.log")
