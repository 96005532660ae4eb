"""The single-turn arm: one answer without tools or feedback, judged once, in a run folder like any other."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from pathlib import Path

from cuda_agent.agent.policy import Action, EpisodeContext, Message, Role
from cuda_agent.agent.single_turn import SYSTEM, answer_files
from cuda_agent.config import Scope
from cuda_agent.errors import WorkspaceError
from cuda_agent.pool.remote import reach_verdict
from cuda_agent.result import Result
from cuda_agent.runs.conclusion import nothing_written, save_candidate
from cuda_agent.runs.optimization import prepare
from cuda_agent.runs.reporting import Reporter
from cuda_agent.runs.run_folder import RunFolder, writing
from cuda_agent.runs.settings import OptimizeSettings, Prepared
from cuda_agent.skills import single_turn_prompt
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending, Header, TrajectoryWriter, Turn
from cuda_agent.workspace.layout import SKILL_FILE, create
from cuda_agent.workspace.snapshot import Snapshot, freeze


def ask_once(task: Task, settings: OptimizeSettings, *, out: Path, reporter: Reporter) -> None:
    """Ask the policy for its answer and put it on disk: trajectory, and files in the workspace.

    Raises:
        UsageError, TaskError, ToolchainError, PolicyError: see ``runs.optimization.optimize_task``.
    """
    prepared = prepare(task, settings, reporter)
    folder = RunFolder.create(out, task.name)
    folder.save_task(task)
    folder.save_settings(prepared.settings.to_dict())
    contract, backend = prepared.settings.judge, prepared.backend
    with writing(folder.workspace):
        create(
            folder.workspace,
            task,
            backend=backend.name,
            track=contract.track,
            precision=contract.precision,
        )
    prompt = single_turn_prompt(
        backend.name,
        track=contract.track,
        precision=contract.precision,
        skill=(folder.workspace / SKILL_FILE).read_text(encoding="utf-8"),
        code=task.code,
    )
    header = Header(task.hash, settings.policy, backend.name, str(contract.track), SYSTEM, prompt)
    started = time.monotonic()
    with contextlib.closing(prepared.policy):
        action = _act(prepared, folder.workspace, prompt)
    turn = _turn(action, time.monotonic() - started)
    with writing(folder.trajectory):
        writer = TrajectoryWriter(folder.trajectory, header)
        writer.turn(turn)
        writer.end(Ending.CONTEXT_LIMIT if action.context_full else Ending.FINISHED)
    reporter.turn(turn)


def judge_answer(text: str, folder: RunFolder, settings: OptimizeSettings, *, reporter: Reporter) -> Result:
    """The verdict on an answer; written to the folder."""
    task = folder.load_task()
    files = answer_files(text)
    if not files:
        result = nothing_written(task, settings.judge, text)
        folder.save_result(result)
        return result
    with writing(folder.workspace):
        _write(Snapshot(files), folder.workspace)
    with contextlib.suppress(WorkspaceError):  # too large, say: that is the judge's verdict below
        save_candidate(freeze(folder.workspace), folder)
    result = reach_verdict(
        folder.workspace,
        task=task,
        config=settings.judge,
        scope=Scope.FULL,
        progress=reporter.say,
        pool=settings.pool,
    )
    folder.save_result(result)
    return result


def _act(prepared: Prepared, workspace: Path, prompt: str) -> Action:
    settings = prepared.settings
    limit_s = settings.episode.time_limit_s
    context = EpisodeContext(
        workspace=workspace,
        task=prepared.task,
        backend=prepared.backend.name,
        track=str(settings.judge.track),
        precision=str(settings.judge.precision),
        facts=asdict(prepared.backend.facts()),
        max_context=settings.episode.max_context,
        deadline=None if limit_s is None else time.monotonic() + limit_s,
    )
    prepared.policy.start(context)
    messages = [Message(Role.SYSTEM, SYSTEM), Message(Role.USER, prompt)]
    return prepared.policy.act(messages, ())


def _turn(action: Action, seconds: float) -> Turn:
    return Turn(
        index=0,
        text=action.text,
        malformed=action.malformed,
        tokens=action.tokens,
        usage=action.usage,
        seconds=seconds,
    )


def _write(snapshot: Snapshot, workspace: Path) -> None:
    for name in snapshot.files:
        with contextlib.suppress(OSError):
            (workspace / name).unlink()
    snapshot.write(workspace)
