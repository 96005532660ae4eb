"""The loop of a stage: steps, metrics, checkpoints, alarms; goes on exactly where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import CudaAgentError
from cuda_agent.rl.checkpoints import Checkpoints, save_file
from cuda_agent.rl.guards import Alarm, alarms, is_due
from cuda_agent.rl.run_log import RunLog, alarms_of, numbers_of
from cuda_agent.rl.trainer import Trainer
from cuda_agent.rl.training_config import AlarmAction, TrainConfig
from cuda_agent.runs.run_folder import write_text

WEIGHTS = "weights.pt"
DONE = "done.json"
Say = Callable[[str], None]


class Collapsed(CudaAgentError):
    """A guard stopped a stage; its last good checkpoint is kept."""


@dataclass
class Carried:
    """What a stage carries from step to step beside weights; JSON types only.

    Attributes:
        rates: last pass rate of each task, by hash.
        rollbacks: how often the stage went back; part of every seed, so that it does not repeat itself.
    """

    rates: dict[str, float] = field(default_factory=dict)
    rollbacks: int = 0


Step = Callable[[int, Carried], Mapping[str, Any]]
"""Makes one step (from 0) and gives its metrics."""


class StageLoop:
    """One stage in its folder.

    Args:
        folder: of the stage.
        trainer: its weights, restored from the last checkpoint.
        say: told one line for each step.
    """

    def __init__(self, folder: Path, trainer: Trainer, config: TrainConfig, say: Say) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._trainer, self._config, self._say = folder, trainer, config, say
        self._log = RunLog(folder, tensorboard=config.run.tensorboard)
        self._checkpoints = Checkpoints(folder / "checkpoints", keep=config.run.keep)
        self.carried = Carried()

    def run(self, steps: int, step: Step) -> None:
        """All steps that are left, then the stage's weights.

        Raises:
            Collapsed: an alarm was due, and the rules say to stop.
        """
        if not self._checkpoints.steps():
            self._save(0)
        number = self._restore()
        while number < steps:
            started = time.monotonic()
            found = step(number, self.carried)
            row = {"step": number, **found, "rollbacks": self.carried.rollbacks}
            row["alarms"] = self._alarms(row)
            row["seconds"] = time.monotonic() - started
            self._log.append(row)
            self._say(self._line(row, steps))
            number += 1
            if (due := self._due()) is not None:
                number = self._act(due, number)
            elif number % self._config.run.checkpoint_every == 0 or number == steps:
                self._save(number)
        self._finish(steps)

    def _save(self, number: int) -> None:
        state = {**self._trainer.state_dict(), "carried": vars(self.carried)}
        self._checkpoints.save(number, state)

    def _restore(self) -> int:
        """Step to go on with; a roll-back that was decided before a kill is not forgotten."""
        number = self._checkpoints.steps()[-1]
        state = self._checkpoints.load(number, device=self._trainer.device)
        self._trainer.load_state_dict(state)
        self.carried = Carried(**state["carried"])
        self.carried.rollbacks = max(self.carried.rollbacks, self._rollbacks())
        self._log.cut(number)
        return number

    def _alarms(self, row: Mapping[str, Any]) -> list[str]:
        rows = [numbers_of(one) for one in (*self._log.rows(), row)]
        return [str(alarm) for alarm in alarms(rows, self._config.guards)]

    def _due(self) -> Alarm | None:
        recorded = [alarms_of(row) for row in self._log.rows()]
        return is_due(recorded, self._config.guards.patience)

    def _act(self, alarm: Alarm, number: int) -> int:
        guards = self._config.guards
        if guards.action is AlarmAction.WARN:
            self._say(f"alarm: {alarm} for {guards.patience} steps")
            if number % self._config.run.checkpoint_every == 0:
                self._save(number)
            return number
        good = [step for step in self._checkpoints.steps() if step <= max(0, number - guards.patience)]
        if guards.action is AlarmAction.STOP or self.carried.rollbacks >= guards.max_rollbacks or not good:
            raise Collapsed(
                f"{self._folder.name} stopped at step {number}: {alarm} for {guards.patience} steps",
                f"Checkpoints are in {self._folder / 'checkpoints'}; see [guards] in the configuration.",
            )
        rollbacks = self.carried.rollbacks + 1
        write_text(self._folder / "rollbacks.json", json.dumps({"number": rollbacks, "to": good[-1]}) + "\n")
        self._checkpoints.drop_after(good[-1])
        back = self._restore()
        self._say(f"alarm: {alarm}; back to step {back} (roll-back {rollbacks} of {guards.max_rollbacks})")
        return back

    def _rollbacks(self) -> int:
        path = self._folder / "rollbacks.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["number"]) if path.is_file() else 0

    def _finish(self, steps: int) -> None:
        save_file(self._folder / WEIGHTS, self._trainer.networks.state())
        self._trainer.networks.save_actor(self._folder / "actor")
        write_text(self._folder / DONE, json.dumps({"steps": steps}) + "\n")

    def _line(self, row: Mapping[str, Any], steps: int) -> str:
        shown = ("reward", "policy_loss", "nll_loss", "value_loss", "entropy", "kl", "explained_variance")
        facts = [f"{name} {row[name]:.3f}" for name in shown if isinstance(row.get(name), float)]
        raised = f" ALARM {', '.join(row['alarms'])}" if row["alarms"] else ""
        return f"{self._folder.name} {row['step'] + 1}/{steps}: {', '.join(facts)}{raised}"
