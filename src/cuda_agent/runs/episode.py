"""The episode of a run: workspace laid out, judge service started, policy let loose on the tools."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from cuda_agent.agent.policy import EpisodeContext
from cuda_agent.agent.react import run_episode
from cuda_agent.agent.tools import Toolbox
from cuda_agent.config import Scope
from cuda_agent.errors import UsageError
from cuda_agent.judge.entry import keep_failure
from cuda_agent.judge.session import JudgeSession
from cuda_agent.pool.remote import PoolSession, open_pool
from cuda_agent.result import Result
from cuda_agent.runs.ledger import Ledger
from cuda_agent.runs.reporting import Reporter
from cuda_agent.runs.run_folder import RunFolder, writing
from cuda_agent.runs.settings import Prepared
from cuda_agent.skills import system_prompt, task_prompt
from cuda_agent.trajectory import Ending, Header, TrajectoryWriter, Turn, read_trajectory
from cuda_agent.workspace.layout import create
from cuda_agent.workspace.service import JudgeService
from cuda_agent.workspace.snapshot import Snapshot, freeze

log = logging.getLogger(__name__)


class Episode:
    """One episode in a run's folder; ``turns``, ``ledger`` and ``starter`` are filled while it runs.

    Attributes:
        turns: made so far, those of an earlier process included.
        ledger: versions that the public scripts judged.
        starter: hash of the candidate as laid out, before anybody wrote.
    """

    def __init__(self, prepared: Prepared, folder: RunFolder, reporter: Reporter) -> None:
        self._prepared, self._folder, self._reporter = prepared, folder, reporter
        self._session: JudgeSession | PoolSession | None = None
        self.ledger = Ledger(folder.snapshots)
        self.turns: list[Turn] = []
        self.starter = ""

    def start(self) -> tuple[Ending, str]:
        """Lay out the workspace and run."""
        prepared, judge = self._prepared, self._prepared.settings.judge
        with writing(self._folder.workspace):
            create(
                self._folder.workspace,
                prepared.task,
                backend=prepared.backend.name,
                track=judge.track,
                precision=judge.precision,
            )
        self.starter = freeze(self._folder.workspace).hash
        header = self._header()
        with writing(self._folder.trajectory):
            writer = TrajectoryWriter(self._folder.trajectory, header)
        return self._run(header, writer)

    def resume(self) -> tuple[Ending, str]:
        """Go on where an earlier process stopped: files and history; the shell is a new one.

        Raises:
            UsageError: the trajectory was damaged.
        """
        self.ledger = Ledger.load(self._folder.snapshots)
        path = self._folder.trajectory
        if not path.is_file():
            shutil.rmtree(self._folder.workspace, ignore_errors=True)
            return self.start()
        trajectory = read_trajectory(path)
        self.starter = str(trajectory.header.settings.get("starter", ""))
        self.turns = list(trajectory.turns)
        if trajectory.ending is Ending.FINISHED:
            self._reporter.say("the episode had finished: only the verdict is left")
            return trajectory.ending, trajectory.ending_detail
        self._reporter.say(
            f"resuming after {len(self.turns)} turns: files and history; the shell's state is lost"
        )
        _drop_cut_line(path)
        with writing(path):
            writer = TrajectoryWriter(path, trajectory.header, resume=True)
        return self._run(trajectory.header, writer)

    def public(self, scope: Scope, snapshot: Snapshot, result: Result) -> None:
        """Take in a public result: the ledger first, then whoever watches."""
        self.ledger.record(scope, snapshot, result)
        self._reporter.public(scope, snapshot, result)

    def words(self) -> str:
        """The policy's last words."""
        return next((turn.text for turn in reversed(self.turns) if turn.text.strip()), "")

    def _header(self) -> Header:
        prepared, judge = self._prepared, self._prepared.settings.judge
        return Header(
            task_hash=prepared.task.hash,
            policy=prepared.settings.policy,
            backend=prepared.backend.name,
            track=str(judge.track),
            system=system_prompt(),
            prompt=task_prompt(prepared.backend.name, track=judge.track, precision=judge.precision),
            settings={**prepared.settings.to_dict(), "starter": self.starter},
        )

    def _run(self, header: Header, writer: TrajectoryWriter) -> tuple[Ending, str]:
        prepared, workspace = self._prepared, self._folder.workspace
        settings = prepared.settings
        context = EpisodeContext(
            workspace=workspace,
            task=prepared.task,
            backend=prepared.backend.name,
            track=str(settings.judge.track),
            precision=str(settings.judge.precision),
            facts=asdict(prepared.backend.facts()),
        )
        with contextlib.ExitStack() as stack:
            stack.callback(self._close_session)
            service = stack.enter_context(JudgeService(workspace, self._judge, on_result=self.public))
            tools = Toolbox(workspace, service.env, settings.episode.max_output_chars)
            stack.callback(tools.close)
            ending = run_episode(
                prepared.policy,
                context,
                tools=tools,
                config=settings.episode,
                writer=writer,
                system=header.system,
                prompt=header.prompt,
                history=tuple(self.turns),
                on_turn=self._on_turn,
            )
            if ending[0] is Ending.INTERRUPTED:
                self._reporter.say(
                    "interrupted: judging the best version so far (Ctrl-C again stops at once)"
                )
            return ending

    def _on_turn(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._reporter.turn(turn)

    def _judge(self, scope: Scope, snapshot: Snapshot, progress: Callable[[str], None]) -> Result:
        """What the scripts of the workspace run; called in the service's one judging thread."""
        if scope is Scope.FULL:
            # The private suite runs once, on the version chosen at the end (docs/judging.md).
            raise UsageError("the private suite is not run from a workspace", "Use utils.verification.")
        if self._session is None:
            self._session = self._opened()
        result = self._session.judge(snapshot, scope, progress)
        with writing(self._folder.workspace):
            keep_failure(self._folder.workspace, scope, self._session.last_saved)
        return result

    def _opened(self) -> JudgeSession | PoolSession:
        task, settings = self._prepared.task, self._prepared.settings
        if settings.pool:
            return PoolSession(open_pool(settings.pool), task, settings.judge)
        return JudgeSession(task, settings.judge)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _drop_cut_line(path: Path) -> None:
    """Cut a last line that a kill left incomplete, so that what is appended starts on its own line."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
