"""One optimisation from task to verdict: workspace, episode, best version, final judgement.

Nothing that was made is lost: every version a public script judged is on disk, turns are written as
they happen, and however the episode ends (limits, a dead endpoint, Ctrl-C) the fastest verified version
is saved first and judged then.

What needs torch is imported late: a bad option is told at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from cuda_agent.agent.policies import make_policy
from cuda_agent.backends import get_backend
from cuda_agent.config import Device
from cuda_agent.result import Result
from cuda_agent.runs.reporting import Reporter, Silent
from cuda_agent.runs.run_folder import RunFolder, check_free, write_text
from cuda_agent.runs.settings import OptimizeSettings, Prepared
from cuda_agent.runs.summary import Outcome, summary_text
from cuda_agent.task import Task
from cuda_agent.trajectory import Ending


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
    check_free(out)
    prepared = prepare(task, settings, reporter)
    folder = RunFolder.create(out, task.name)
    folder.save_task(task)
    # From here on the task's assets are the run's own copies.
    prepared = replace(prepared, task=folder.load_task())
    folder.save_settings(prepared.settings.to_dict())
    return _execute(prepared, folder, reporter, resume=False)


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
    return _execute(prepared, folder, reporter, resume=True)


def prepare(task: Task, settings: OptimizeSettings, reporter: Reporter) -> Prepared:
    """Check everything that can be checked before a folder is made.

    Raises:
        UsageError, TaskError, ToolchainError, PolicyError: see :func:`optimize_task`.
    """
    backend = get_backend(settings.judge.device, gpu=settings.judge.gpu)
    backend.facts()  # measured or read from the cache: a cache that cannot be written is told now
    # AUTO is resolved once: the verdict must be on the device the episode ran on.
    settings = replace(settings, judge=replace(settings.judge, device=Device(backend.name)))
    policy = make_policy(settings.policy, **settings.policy_options)
    reporter.say(f"checking the task {task.name} on {backend.name}")
    if settings.pool:
        from cuda_agent.pool.remote import open_pool

        open_pool(settings.pool).metrics()  # a wrong address or token is told now; the pool refuses bad tasks
    else:
        from cuda_agent.judge.task_check import check_task

        check_task(task, settings.judge)
    return Prepared(task, settings, backend, policy)


def _execute(prepared: Prepared, folder: RunFolder, reporter: Reporter, *, resume: bool) -> Outcome:
    """Run the episode, then judge; the summary is written whatever happens on the way."""
    from cuda_agent.runs.conclusion import conclude, save_best
    from cuda_agent.runs.episode import Episode

    episode = Episode(prepared, folder, reporter)
    ending, detail = Ending.INTERRUPTED, "interrupted before the first turn"
    result: Result | None = None
    try:
        with contextlib.closing(prepared.policy):
            ending, detail = episode.resume() if resume else episode.start()
        reporter.say(f"episode ended: {ending}" + (f" ({detail})" if detail else ""))
        result = conclude(episode, ending, prepared, folder=folder, reporter=reporter)
    except KeyboardInterrupt:
        ending = Ending.INTERRUPTED
        save_best(episode, folder)
        kept = "the best version is saved" if episode.ledger.best() else "no version was verified yet"
        reporter.say(f"stopped: {kept}, the final verdict is missing (--resume reaches it)")
    finally:
        outcome = Outcome(
            folder=folder,
            task=prepared.task,
            ending=ending,
            detail=detail,
            result=result,
            num_turns=len(episode.turns),
            num_versions=len(episode.ledger),
            num_verified=len(episode.ledger.verified()),
            words=episode.words(),
        )
        write_text(folder.summary, summary_text(outcome))
    return outcome
