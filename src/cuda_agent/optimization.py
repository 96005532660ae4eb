"""One optimisation from task to verdict: workspace, episode, best version, final judgement.

Nothing that was made is lost: every version a public script judged is on disk, turns are written as
they happen, and however the episode ends (limits, a dead endpoint, Ctrl-C) the fastest verified version
is saved first and judged then.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from cuda_agent.agent.policy import EpisodeContext, Policy
from cuda_agent.backends import get_backend
from cuda_agent.backends.base import Backend
from cuda_agent.config import Device, Scope
from cuda_agent.errors import CudaAgentError, UsageError
from cuda_agent.ledger import Ledger
from cuda_agent.result import Result, Stage
from cuda_agent.run_folder import RunFolder, write_text, writing
from cuda_agent.settings import OptimizeSettings
from cuda_agent.summary import Outcome, summary_text
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, TrajectoryWriter, Turn, read_trajectory
from cuda_agent.workspace.snapshot import Snapshot, freeze

log = logging.getLogger(__name__)

# Verified versions that no script timed are timed at the end, the latest first, this many at most.
MAX_LATE_PROFILES = 3


class Reporter(Protocol):
    """Told what happens, for people. Called from several threads."""

    def say(self, text: str) -> None:
        """One line of progress."""
        ...

    def turn(self, turn: Turn) -> None:
        """A turn was made."""
        ...

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """A public script judged a version."""
        ...


class Silent:
    """Reports nothing."""

    def say(self, text: str) -> None:
        """See :class:`Reporter`."""

    def turn(self, turn: Turn) -> None:
        """See :class:`Reporter`."""

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """See :class:`Reporter`."""


@dataclass(frozen=True)
class Prepared:
    """What is known before anything is written: the backend answers, the task can be judged."""

    task: Task
    settings: OptimizeSettings
    backend: Backend
    policy: Policy


def optimize_task(
    task: Task, settings: OptimizeSettings, *, out: Path | None = None, reporter: Reporter | None = None
) -> Outcome:
    """Optimise one task.

    Args:
        task: the reference.
        settings: policy, contract, limits.
        out: an empty or new folder; ``cuda-agent-out/NAME`` when left out.
        reporter: told what happens.

    Raises:
        UsageError: ``out`` holds something, or the policy's name is unknown.
        TaskError: the reference cannot be judged.
        ToolchainError: this machine lacks a compiler or the device.
        PolicyError: the policy cannot start.
    """
    reporter = reporter or Silent()
    prepared = prepare(task, settings, reporter)
    folder = RunFolder.create(out, task.name)
    folder.save_task(task)
    folder.save_settings(prepared.settings.to_dict())
    return _Run(prepared, folder, reporter).execute(resume=False)


def resume_run(
    root: Path, settings: OptimizeSettings | None = None, *, reporter: Reporter | None = None
) -> Outcome:
    """Continue a run that died or was stopped: files and history; the shell's state is lost.

    Args:
        root: the run's folder.
        settings: in place of the run's own (raised limits, say).
        reporter: told what happens.

    Raises:
        UsageError: the folder is no run.
    """
    reporter = reporter or Silent()
    folder = RunFolder.open(root)
    settings = settings or OptimizeSettings.from_dict(folder.load_settings())
    prepared = prepare(folder.load_task(), settings, reporter)
    return _Run(prepared, folder, reporter).execute(resume=True)


def prepare(task: Task, settings: OptimizeSettings, reporter: Reporter) -> Prepared:
    """Check everything that can be checked before a folder is made.

    Raises:
        UsageError, TaskError, ToolchainError, PolicyError: see :func:`optimize_task`.
    """
    from cuda_agent.admission import check_task
    from cuda_agent.agent.policies import make_policy

    backend = get_backend(settings.judge.device, gpu=settings.judge.gpu)
    # AUTO is resolved once: the verdict must be on the device the episode ran on.
    settings = replace(settings, judge=replace(settings.judge, device=Device(backend.name)))
    policy = make_policy(settings.policy, **settings.policy_options)
    reporter.say(f"checking the task {task.name} on {backend.name}")
    check_task(task, settings.judge)
    return Prepared(task, settings, backend, policy)


class _Run:
    def __init__(self, prepared: Prepared, folder: RunFolder, reporter: Reporter) -> None:
        self._task, self._settings = prepared.task, prepared.settings
        self._backend, self._policy = prepared.backend, prepared.policy
        self._folder, self._reporter = folder, reporter
        self._ledger = Ledger(folder.snapshots)
        self._turns: list[Turn] = []
        self._starter = ""

    def execute(self, *, resume: bool) -> Outcome:
        """Run the episode, then judge; the outcome is written whatever happens on the way."""
        ending, detail, result = Ending.INTERRUPTED, "interrupted before the first turn", None
        try:
            with contextlib.closing(self._policy):
                ending, detail = self._resumed() if resume else self._fresh()
            self._reporter.say(f"episode ended: {ending}" + (f" ({detail})" if detail else ""))
            result = self._conclude()
        except KeyboardInterrupt:
            ending = Ending.INTERRUPTED
            self._reporter.say("interrupted: the best version is saved, the final verdict is missing")
        finally:
            outcome = self._outcome(ending, detail, result)
            write_text(self._folder.summary, summary_text(outcome))
        return outcome

    # -- the episode --------------------------------------------------------------------------

    def _fresh(self) -> tuple[Ending, str]:
        self._lay_out()
        header = self._header()
        writer = TrajectoryWriter(self._folder.trajectory, header)
        return self._episode(header, writer)

    def _resumed(self) -> tuple[Ending, str]:
        self._ledger = Ledger.load(self._folder.snapshots)
        self._starter = self._starter_hash()
        if not self._folder.trajectory.is_file():
            shutil.rmtree(self._folder.workspace, ignore_errors=True)
            return self._fresh()
        trajectory = read_trajectory(self._folder.trajectory)
        self._turns = list(trajectory.turns)
        if trajectory.ending is Ending.FINISHED:
            self._reporter.say("the episode had finished: only the verdict is left")
            return trajectory.ending, trajectory.ending_detail
        self._reporter.say(f"resuming after {len(self._turns)} turns; the shell's state is lost")
        _drop_cut_line(self._folder.trajectory)
        writer = TrajectoryWriter(self._folder.trajectory, trajectory.header, resume=True)
        return self._episode(trajectory.header, writer)

    def _lay_out(self) -> None:
        from cuda_agent.workspace.layout import create

        judge = self._settings.judge
        with writing(self._folder.workspace):
            create(
                self._folder.workspace,
                self._task,
                backend=self._backend.name,
                track=judge.track,
                precision=judge.precision,
            )
        self._starter = freeze(self._folder.workspace).hash

    def _header(self) -> Header:
        from cuda_agent.skills import system_prompt, task_prompt

        judge = self._settings.judge
        return Header(
            task_hash=self._task.hash,
            policy=self._settings.policy,
            backend=self._backend.name,
            track=str(judge.track),
            system=system_prompt(),
            prompt=task_prompt(self._backend.name, track=judge.track, precision=judge.precision),
            settings={**self._settings.to_dict(), "starter": self._starter},
        )

    def _starter_hash(self) -> str:
        if not self._folder.trajectory.is_file():
            return ""
        return str(read_trajectory(self._folder.trajectory).header.settings.get("starter", ""))

    def _episode(self, header: Header, writer: TrajectoryWriter) -> tuple[Ending, str]:
        from cuda_agent.agent.react import run_episode
        from cuda_agent.agent.tools import Toolbox
        from cuda_agent.workspace.service import JudgeService

        settings, workspace = self._settings, self._folder.workspace
        context = EpisodeContext(
            workspace=workspace,
            task=self._task,
            backend=self._backend.name,
            track=str(settings.judge.track),
            precision=str(settings.judge.precision),
            facts=asdict(self._backend.facts()),
        )
        service = JudgeService(workspace, self._judge_public, on_result=self._on_result)
        with (
            service,
            contextlib.closing(Toolbox(workspace, service.env, settings.episode.max_output_chars)) as tools,
        ):
            return run_episode(
                self._policy,
                context,
                tools=tools,
                config=settings.episode,
                writer=writer,
                system=header.system,
                prompt=header.prompt,
                history=tuple(self._turns),
                on_turn=self._on_turn,
            )

    def _on_turn(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._reporter.turn(turn)

    def _on_result(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        self._ledger.record(scope, snapshot, result)
        self._reporter.public(scope, snapshot, result)

    def _judge_public(self, scope: Scope, snapshot: Snapshot, progress: Callable[[str], None]) -> Result:
        if scope is Scope.FULL:
            # The private suite runs once, on the version chosen at the end (docs/judging.md).
            raise UsageError("the private suite is not run from a workspace", "Use utils.verification.")
        return self._judge(scope, snapshot, progress)

    def _judge(self, scope: Scope, snapshot: Snapshot, progress: Callable[[str], None] | None) -> Result:
        from cuda_agent.judge import judge

        return judge(
            self._folder.workspace,
            task=self._task,
            config=self._settings.judge,
            scope=scope,
            progress=progress,
            snapshot=snapshot,
        )

    # -- the verdict --------------------------------------------------------------------------

    def _conclude(self) -> Result | None:
        """Choose the version, save it, judge it once by the private suite."""
        # Saved before anything else runs: a second Ctrl-C from here on loses nothing.
        if best := self._ledger.best():
            self._save_candidate(best.snapshot)
        final = self._judge_final_state()
        self._profile_untimed()
        best = self._ledger.best()
        chosen = best.snapshot if best else final
        if chosen is None:
            return self._save_result(self._nothing_written())
        self._save_candidate(chosen)
        how = "fastest verified" if best else "final, unverified"
        self._reporter.say(f"judging the {how} version {chosen.hash} by the private suite")
        return self._save_result(self._judge(Scope.FULL, chosen, self._reporter.say))

    def _judge_final_state(self) -> Snapshot | None:
        """The workspace as it is now, publicly judged; ``None`` where it holds no candidate."""
        try:
            snapshot = freeze(self._folder.workspace)
        except CudaAgentError as error:
            self._reporter.say(f"the workspace cannot be judged as it is: {error}")
            return None
        if snapshot.hash == self._starter:
            return None
        version = self._ledger.get(snapshot)
        if version is None or version.verified is None:
            self._public(Scope.VERIFY, snapshot, "verifying the final state")
        return snapshot

    def _profile_untimed(self) -> None:
        untimed = [v for v in self._ledger.verified() if v.time_us is None]
        if len(self._ledger.verified()) < 2:
            return  # one version only: the final judgement times it
        for version in sorted(untimed, key=lambda v: -v.order)[:MAX_LATE_PROFILES]:
            self._public(Scope.PROFILE, version.snapshot, f"timing version {version.snapshot.hash}")

    def _public(self, scope: Scope, snapshot: Snapshot, about: str) -> None:
        self._reporter.say(about)
        try:
            self._on_result(scope, snapshot, self._judge(scope, snapshot, None))
        except CudaAgentError as error:
            self._reporter.say(f"{about} failed: {error}")

    def _save_candidate(self, snapshot: Snapshot) -> None:
        with writing(self._folder.candidate):
            part = self._folder.candidate.with_name(".candidate.part")
            shutil.rmtree(part, ignore_errors=True)
            snapshot.write(part)
            shutil.rmtree(self._folder.candidate, ignore_errors=True)
            part.rename(self._folder.candidate)

    def _save_result(self, result: Result) -> Result:
        self._folder.save_result(result)
        return result

    def _nothing_written(self) -> Result:
        judge = self._settings.judge
        return Result(
            stage=Stage.BUILD,
            correct=False,
            reward=-1,
            detail=f"no candidate was written. {self._words()}".strip(),
            track=str(judge.track),
            precision=str(judge.precision),
            reference="task",
            task_hash=self._task.hash,
        )

    def _words(self) -> str:
        return next((turn.text for turn in reversed(self._turns) if turn.text.strip()), "")

    def _outcome(self, ending: Ending, detail: str, result: Result | None) -> Outcome:
        return Outcome(
            folder=self._folder,
            task=self._task,
            ending=ending,
            detail=detail,
            result=result,
            num_turns=len(self._turns),
            num_versions=len(self._ledger),
            num_verified=len(self._ledger.verified()),
            words=self._words(),
        )


def _drop_cut_line(path: Path) -> None:
    """Cut a last line that a kill left incomplete, so that what is appended starts on its own line."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
