"""A judge for one task that stays warm between candidates: reference runner, spare candidate process,
torch.compile baseline. One candidate at a time; each gets a process of its own that is then thrown away.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_agent.backends import get_backend
from cuda_agent.backends.base import Backend
from cuda_agent.config import JudgeConfig, Scope, Track
from cuda_agent.errors import CudaAgentError, InfrastructureError
from cuda_agent.judge.attempt import Attempt, Built, Outcome
from cuda_agent.judge.attribution import own_names
from cuda_agent.judge.baseline import BaselineCache, Compiler
from cuda_agent.judge.build import build
from cuda_agent.judge.bystanders import open_watch
from cuda_agent.judge.candidate import Candidate
from cuda_agent.judge.devices import choose_place, versions
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.finding import Severity
from cuda_agent.judge.processes import WorkerDied, WorkerError
from cuda_agent.judge.reference import Reference
from cuda_agent.judge.report import Verdict, failed_build, forbidden, from_fault, from_outcome
from cuda_agent.judge.static import scan_sources
from cuda_agent.judge.symbols import defined_names, scan_library
from cuda_agent.judge.verify import Subject
from cuda_agent.pool.lease import attendance, lease
from cuda_agent.result import Fault, Result, Stage
from cuda_agent.sandbox.isolation import Isolation, isolation
from cuda_agent.sandbox.scratch import Scratch
from cuda_agent.task import Task
from cuda_agent.workspace.snapshot import Snapshot

_log = logging.getLogger(__name__)
_FAULT_KINDS = {
    FailureKind.OUT_OF_MEMORY: Fault.OUT_OF_MEMORY,
    FailureKind.ILLEGAL_ACCESS: Fault.ILLEGAL_ACCESS,
    FailureKind.CUDA_ERROR: Fault.CRASH,
}
_NOT_ISOLATED = "this host forbids namespaces: candidates ran with limits only (docs/isolation.md)"
Say = Callable[[str], None]


class JudgeSession:
    """Judges candidates of one task. A context manager; methods are not thread-safe.

    Args:
        task: the reference.
        config: contract and device.
        task_given: the reference came from a task file, not from the candidate's own folder.

    Raises:
        ToolchainError: no such device, or no compiler.
    """

    def __init__(self, task: Task, config: JudgeConfig, *, task_given: bool = True) -> None:
        task.check_names()
        self._task = task
        self._config = config
        self._backend: Backend = get_backend(config.device, gpu=config.gpu)
        self._facts = self._backend.facts()
        self.place = choose_place(self._backend.name, config)
        self._held = ExitStack()
        self._held.enter_context(attendance(self.place.device))
        self._watch = open_watch(self.place, config.gpu)
        self._held.callback(self._watch.close)
        self._versions = versions(self.place, self._facts.driver)
        self._cache = BaselineCache(
            task, config, self.place, device_name=self._facts.name, versions=self._versions
        )
        self._seed = secrets.randbits(31)
        self._compiler = Compiler(task, config, self.place, seed=self._seed)
        self._reference: Reference | None = None
        self._spare: Candidate | None = None
        self._out_of_use = ""
        self.last_saved: Mapping[str, Any] | None = None
        self._verdict = Verdict(
            task_hash=task.hash,
            reference="task" if task_given else "unverified",
            track=config.track,
            precision=config.precision,
            place=self.place,
            facts=self._facts,
            versions=self._versions,
        )

    def judge(self, snapshot: Snapshot, scope: Scope, say: Say | None = None) -> Result:
        """Judge one candidate.

        Args:
            snapshot: the candidate's files.
            scope: how much to do.
            say: receives the lines an agent may read.

        Returns:
            The verdict; with ``infrastructure`` set when our own side failed.

        Raises:
            TaskError: the reference cannot be judged.
            ToolchainError: the compiler is missing.
        """
        start = time.monotonic()
        with Scratch() as folder:
            try:
                result = self._judge(snapshot, scope, folder / "candidate", say or _silent)
            except InfrastructureError as error:
                _log.error("%s", error)
                result = Result(stage=Stage.BUILD, infrastructure=str(error))
        seconds = {**result.seconds, "total": time.monotonic() - start}
        if isolation() is Isolation.NONE:
            result = replace(result, notes=(*result.notes, _NOT_ISOLATED))
        return replace(self._verdict.stamp(result, snapshot.hash, scope), seconds=seconds)

    def _judge(self, snapshot: Snapshot, scope: Scope, folder: Path, say: Say) -> Result:
        if self._out_of_use:
            raise InfrastructureError(self._out_of_use)
        self._warm(scope)
        outcome = build(
            snapshot,
            self._backend,
            track=self._config.track,
            folder=folder,
            limit_s=self._config.build_limit_s,
        )
        seconds = {"build": outcome.seconds}
        if not outcome.ok or outcome.library is None:
            fault = Fault.TIME_OUT if outcome.timed_out else None
            return replace(failed_build(outcome.message, fault), seconds=seconds)
        scan = scan_library(outcome.library, backend=self.place.kind)
        findings = [*scan_sources(snapshot.files), *scan.findings]
        if (result := forbidden(findings)) is not None:
            return replace(result, seconds=seconds)
        notes = [f.detail for f in findings if f.severity is Severity.NOTE]
        built = Built(folder, outcome.library, own_names(defined_names(outcome.library)))
        if scope is Scope.BUILD:
            return replace(self._import_only(built), seconds=seconds, notes=tuple(notes))
        self._wait_ready()
        with lease(self.place.device):
            result = self._attempts(built, scope, say)
        return replace(result, seconds={**seconds, **result.seconds}, notes=tuple([*notes, *result.notes]))

    @property
    def out_of_use(self) -> str:
        """Why the device is used no more; empty while it works."""
        return self._out_of_use

    # -- processes ----------------------------------------------------------------------------

    def _warm(self, scope: Scope) -> None:
        """Start what will be needed; processes import torch while the candidate compiles."""
        if self._spare is not None and not self._spare.is_alive():
            self._spare.close()
            self._spare = None
        self._spare = self._spare or Candidate(self._config, self.place)
        if scope is Scope.BUILD:
            return
        if self._reference is not None and not self._reference.is_alive():
            self._reference.close()
            self._reference = None
        if self._reference is None:
            self._reference = Reference(self._task, self._config, self.place)
        wants_compile = scope in (Scope.PROFILE, Scope.FULL)
        if wants_compile and (
            self._cache.get(0) is None or (scope is Scope.FULL and self.place.kind == "cpu")
        ):
            self._compiler.start()

    def _wait_ready(self) -> None:
        """The processes' imports take seconds and touch no device: done before the lease."""
        self._compiler.wait_ready()
        if self._reference is not None:
            self._reference.wait_ready()
        if self._spare is not None:
            try:
                self._spare.wait_ready()
            except (WorkerDied, WorkerError):
                self._spare.close()
                self._spare = None

    def _loaded_reference(self) -> Reference:
        assert self._reference is not None
        if self._reference.load_block is None:
            try:
                self._reference.load(self._seed)
                self._check_reference(self._reference)
            except CudaAgentError:
                self._reference.close()
                self._reference = None
                raise
        return self._reference

    def _check_reference(self, reference: Reference) -> None:
        """The task must be a function of its inputs, in every case; the inputs' words are kept."""
        inputs = []
        for case in range(len(reference.weights)):
            drawn = reference.draw(case=case)
            try:
                expected = reference.run(drawn, float64=self._config.track is Track.MATCHED, check=True)
                expected.close()
            finally:
                drawn.close()
            inputs.append(drawn.words)
        self._verdict.inputs = tuple(inputs)

    def _fresh_candidate(self) -> Candidate:
        spare, self._spare = self._spare, None
        if spare is not None and not spare.is_alive():
            spare.close()
            spare = None
        why = ""
        for waiting in (spare, None):
            candidate = waiting or Candidate(self._config, self.place)
            try:
                candidate.settle()
            except (WorkerDied, WorkerError) as error:
                candidate.close()
                why = str(error)
            else:
                return candidate
        raise self._lost(f"fresh workers cannot use it: {why}")

    def _lost(self, why: str) -> InfrastructureError:
        """The device is taken out of use: no later candidate of this judge is tried on it, or blamed."""
        self._out_of_use = f"{self.place.device} is out of use since {why}"
        return InfrastructureError(
            self._out_of_use, "Run `cuda-agent doctor`; a GPU that fails may need a look by its owner."
        )

    def _import_only(self, built: Built) -> Result:
        candidate = self._fresh_candidate()
        try:
            candidate.import_extension(built.library)
        except WorkerError as error:
            return Result(stage=Stage.LOAD, correct=False, detail=f"the extension does not load: {error}")
        except WorkerDied as death:
            return Result(stage=Stage.LOAD, correct=False, fault=death.fault, detail=str(death))
        finally:
            candidate.close()
        return Result(stage=Stage.LOAD, compiled=True)

    # -- attempts -----------------------------------------------------------------------------

    def _attempts(self, built: Built, scope: Scope, say: Say) -> Result:
        """One attempt; a fault is confirmed on a fresh process after a known-good probe."""
        result, is_fault = self._attempt(built, scope, say)
        if not is_fault or (scope is not Scope.FULL and result.fault is Fault.TIME_OUT):
            return result
        probe = self._fresh_candidate()
        try:
            probe.probe()
        except (WorkerDied, WorkerError) as error:
            raise self._lost(
                f"it fails a known-good computation after a candidate's fault: {error}"
            ) from None
        finally:
            probe.close()
        self._reference_survived()
        again, repeated = self._attempt(built, scope, _silent)
        if repeated:
            return again
        return replace(again, notes=(*again.notes, f"a fault did not repeat: {result.detail}"))

    def _reference_survived(self) -> None:
        """After a fault the reference runner may have lost the device: start it anew."""
        if self.place.kind == "cuda" and self._reference is not None:
            self._reference.close()
            self._reference = Reference(self._task, self._config, self.place)

    def _attempt(self, built: Built, scope: Scope, say: Say) -> tuple[Result, bool]:
        reference = self._loaded_reference()
        candidate = self._fresh_candidate()
        self._spare = Candidate(self._config, self.place)
        subject = Subject(reference, candidate, self._config, self.place)
        attempt = Attempt(
            subject,
            facts=self._facts,
            compiler=self._compiler,
            cache=self._cache,
            watch=self._watch,
            seed=self._seed,
            say=say,
        )
        try:
            return self._finish(attempt.run(built, scope), scope), False
        except WorkerError as error:
            fault = _FAULT_KINDS.get(error.kind)
            return from_fault(attempt.outcome, fault, _explain(error)), fault is not None
        except WorkerDied as death:
            return from_fault(attempt.outcome, death.fault, str(death)), True
        finally:
            self._restore(reference, attempt.outcome)
            attempt.close()
            candidate.close()

    def _restore(self, reference: Reference, outcome: Outcome) -> None:
        """An attempt that ended among the perturbed checks leaves the reference perturbed."""
        if outcome.perturbed:
            reference.close()
            self._reference = None
            self._warm(Scope.VERIFY)

    def _finish(self, outcome: Outcome, scope: Scope) -> Result:
        assert self._reference is not None
        self.last_saved = outcome.saved
        return from_outcome(outcome, scope, weights=self._reference.weights)

    def close(self) -> None:
        """End every process; may run twice."""
        with self._held as stack:
            for owner in (self._spare, self._reference, self._compiler):
                if owner is not None:
                    stack.callback(owner.close)
        self._spare = self._reference = None

    def __enter__(self) -> JudgeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _silent(_: str) -> None:
    pass


def _explain(error: WorkerError) -> str:
    return f"{error}\n{error.trace}" if error.trace else str(error)
