"""The end of a run: choose the version, save it, reach the one verdict that counts."""

from __future__ import annotations

import shutil

from cuda_agent.config import JudgeConfig, Scope
from cuda_agent.errors import CudaAgentError
from cuda_agent.pool.remote import reach_verdict
from cuda_agent.result import Result, Stage
from cuda_agent.runs.episode import Episode
from cuda_agent.runs.reporting import Reporter
from cuda_agent.runs.run_folder import RunFolder, writing
from cuda_agent.runs.settings import Prepared
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending
from cuda_agent.workspace.snapshot import Snapshot, freeze

# Verified versions that no script timed are timed at the end, the latest first, this many at most.
MAX_LATE_PROFILES = 3


# Endings that say nothing of the policy's work: where it left nothing, there is nothing to judge.
_FAILED = (Ending.POLICY_ERROR, Ending.SANDBOX_ERROR, Ending.INTERRUPTED)


def conclude(
    episode: Episode, ending: Ending, prepared: Prepared, *, folder: RunFolder, reporter: Reporter
) -> Result | None:
    """Judge the fastest version that passed the public part, once, by the private suite.

    If it fails there, that verdict stands (docs/judging.md, "What is run"). Where no version passed,
    the final state gets the verdict; ``None`` where there is none to give.

    Raises:
        InfrastructureError: the folder cannot be written.
        ToolchainError, TaskError: the judge cannot work any more.
    """
    return _Conclusion(episode, prepared, folder, reporter).run(ending)


def save_best(episode: Episode, folder: RunFolder) -> None:
    """Write the fastest verified version to ``candidate/``, if there is one."""
    if best := episode.ledger.best():
        save_candidate(best.snapshot, folder)


def save_candidate(snapshot: Snapshot, folder: RunFolder) -> None:
    """Replace ``candidate/`` by a version.

    Raises:
        InfrastructureError: it cannot be written; the old one is then still there.
    """
    with writing(folder.candidate):
        part = folder.candidate.with_name(".candidate.part")
        shutil.rmtree(part, ignore_errors=True)
        snapshot.write(part)
        shutil.rmtree(folder.candidate, ignore_errors=True)
        part.rename(folder.candidate)


def nothing_written(task: Task, contract: JudgeConfig, words: str) -> Result:
    """The verdict on a policy that left no candidate; ``words`` are its last."""
    return Result(
        stage=Stage.BUILD,
        correct=False,
        reward=-1,
        detail=f"no candidate was written. {words}".strip(),
        track=str(contract.track),
        precision=str(contract.precision),
        reference="task",
        task_hash=task.hash,
    )


class _Conclusion:
    def __init__(self, episode: Episode, prepared: Prepared, folder: RunFolder, reporter: Reporter) -> None:
        self._episode, self._prepared, self._folder, self._reporter = episode, prepared, folder, reporter

    def run(self, ending: Ending) -> Result | None:
        # Saved before anything else runs: a second Ctrl-C from here on loses nothing.
        save_best(self._episode, self._folder)
        final = self._judge_final_state()
        self._profile_untimed()
        best = self._episode.ledger.best()
        chosen = best.snapshot if best else final
        if chosen is None and ending in _FAILED:
            return None
        if chosen is None:
            result = nothing_written(
                self._prepared.task, self._prepared.settings.judge, self._episode.words()
            )
        else:
            save_candidate(chosen, self._folder)
            how = "fastest verified" if best else "final, unverified"
            self._reporter.say(f"judging the {how} version {chosen.hash} by the private suite")
            result = self._final(chosen)
        self._folder.save_result(result)
        return result

    def _final(self, chosen: Snapshot) -> Result:
        """The verdict that counts; asked for once more where our own side failed."""
        result = self._judge(Scope.FULL, chosen, aloud=True)
        if result.infrastructure is not None:
            self._reporter.say(f"no verdict ({result.infrastructure}): judging once more")
            result = self._judge(Scope.FULL, chosen, aloud=True)
        return result

    def _judge_final_state(self) -> Snapshot | None:
        """The workspace as it is now, publicly judged; ``None`` where it holds no candidate."""
        try:
            snapshot = freeze(self._folder.workspace)
        except CudaAgentError as error:
            self._reporter.say(f"the workspace cannot be judged as it is: {error}")
            return None
        if snapshot.hash == self._episode.starter:
            return None
        version = self._episode.ledger.get(snapshot)
        if version is None or version.verified is None:
            self._public(Scope.VERIFY, snapshot, f"verifying the final state {snapshot.hash}")
        return snapshot

    def _profile_untimed(self) -> None:
        verified = self._episode.ledger.verified()
        if len(verified) < 2:
            return  # the final judgement times the only one
        untimed = [version for version in verified if version.time_us is None]
        for version in sorted(untimed, key=lambda v: -v.order)[:MAX_LATE_PROFILES]:
            self._public(Scope.PROFILE, version.snapshot, f"timing version {version.snapshot.hash}")

    def _public(self, scope: Scope, snapshot: Snapshot, about: str) -> None:
        self._reporter.say(about)
        try:
            self._episode.public(scope, snapshot, self._judge(scope, snapshot))
        except CudaAgentError as error:
            self._reporter.say(f"{about} failed: {error}")

    def _judge(self, scope: Scope, snapshot: Snapshot, *, aloud: bool = False) -> Result:
        return reach_verdict(
            self._folder.workspace,
            task=self._prepared.task,
            config=self._prepared.settings.judge,
            scope=scope,
            progress=self._reporter.say if aloud else None,
            snapshot=snapshot,
            pool=self._prepared.settings.pool,
        )
