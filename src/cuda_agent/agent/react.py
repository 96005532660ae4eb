"""The ReAct loop: the policy acts, the tools answer, and the history only ever grows.

An episode ends in one of the ways of :class:`cuda_agent.trajectory.Ending`; everything made until then is
in the trajectory file, whatever the ending.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cuda_agent.agent.messages import NO_ANSWER, ContextMeter, opening, turn_messages
from cuda_agent.agent.policy import Action, EpisodeContext, Policy
from cuda_agent.agent.tools import Toolbox
from cuda_agent.config import EpisodeConfig
from cuda_agent.errors import InfrastructureError, PolicyError
from cuda_agent.trajectory import Ending, Observation, ToolCall, TrajectoryWriter, Turn

MAX_ANSWER_RESERVE = 2048
"""Tokens kept free for the next answer (an eighth of a small context)."""


def run_episode(
    policy: Policy,
    context: EpisodeContext,
    *,
    tools: Toolbox,
    config: EpisodeConfig,
    writer: TrajectoryWriter,
    system: str,
    prompt: str,
    history: Sequence[Turn] = (),
    on_turn: Callable[[Turn], None] | None = None,
) -> tuple[Ending, str]:
    """Run one episode to its end; how it ended, and a line that says why.

    The policy and the toolbox stay open: whoever made them closes them. The writer gets the ending.

    Args:
        history: turns of an earlier run that died; they count against the turn limit.
        on_turn: called after each turn is on disk.
    """
    episode = _Episode(policy, context, tools=tools, config=config, writer=writer, on_turn=on_turn)
    try:
        ending, detail = episode.run(system, prompt, history)
    except PolicyError as error:
        ending = Ending.TIME_LIMIT if episode.time_is_up() else Ending.POLICY_ERROR
        detail = str(error)
    except InfrastructureError as error:
        ending, detail = Ending.SANDBOX_ERROR, str(error)
    except KeyboardInterrupt:
        ending, detail = Ending.INTERRUPTED, "interrupted by the user"
    except BaseException:
        writer.close()  # a defect of ours: the turns are on disk, and the missing ending says it died
        raise
    try:
        writer.end(ending, detail)
    except OSError as error:
        detail = f"{detail}; cannot write {writer.path}: {error.strerror}".removeprefix("; ")
    return ending, detail


class _Episode:
    def __init__(
        self,
        policy: Policy,
        context: EpisodeContext,
        *,
        tools: Toolbox,
        config: EpisodeConfig,
        writer: TrajectoryWriter,
        on_turn: Callable[[Turn], None] | None,
    ) -> None:
        self._policy, self._tools, self._config, self._writer = policy, tools, config, writer
        self._on_turn = on_turn
        self._deadline = None if config.time_limit_s is None else time.monotonic() + config.time_limit_s
        self._context = replace(context, max_context=config.max_context, deadline=self._deadline)
        self._specs = tools.specs()
        self._meter = ContextMeter(self._specs)
        self._bad_turns = 0

    def run(self, system: str, prompt: str, history: Sequence[Turn]) -> tuple[Ending, str]:
        self._messages = opening(system, prompt, history)
        self._num_turns = len(history)
        self._policy.start(self._context, tuple(self._messages) if history else ())
        while True:
            if limit := self._limit_reached():
                return limit
            started = time.monotonic()
            action = self._policy.act(self._messages, self._specs)
            if action.text or action.calls or action.malformed or action.tokens:
                self._take_turn(action, started)
            if action.context_full:
                return (
                    Ending.CONTEXT_LIMIT,
                    f"the policy's context of {self._config.max_context} tokens is full",
                )
            if not action.calls and not action.malformed:
                return Ending.FINISHED, ""
            if self._bad_turns >= self._config.max_format_errors:
                return Ending.FORMAT_ERRORS, f"{self._bad_turns} turns in a row without a usable action"

    def time_is_up(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _limit_reached(self) -> tuple[Ending, str] | None:
        config = self._config
        if self._num_turns >= config.max_turns:
            return Ending.TURN_LIMIT, f"{config.max_turns} turns"
        if self.time_is_up():
            return Ending.TIME_LIMIT, f"{config.time_limit_s:g} s"
        tokens = self._meter.tokens(self._messages)
        if tokens + min(MAX_ANSWER_RESERVE, config.max_context // 8) > config.max_context:
            return Ending.CONTEXT_LIMIT, f"about {tokens} of {config.max_context} tokens are used"
        return None

    def _take_turn(self, action: Action, started: float) -> None:
        """Run the calls and record the turn, also when it is interrupted half-way."""
        answers: list[Observation] = []
        malformed = list(action.malformed)
        try:
            for call in () if action.context_full else action.calls:
                answers.append(self._run(call, malformed))
        finally:
            left = [Observation(c.id, NO_ANSWER, is_error=True) for c in action.calls[len(answers) :]]
            to_malformed = [Observation("", text, is_error=True) for text in action.malformed]
            turn = Turn(
                index=self._num_turns,
                text=action.text,
                calls=action.calls,
                observations=(*answers, *left, *to_malformed),
                malformed=tuple(malformed),
                tokens=action.tokens,
                usage=action.usage,
                seconds=time.monotonic() - started,
            )
            self._record(turn)
        num_refused = len(malformed) - len(action.malformed)
        self._bad_turns = self._bad_turns + 1 if malformed and num_refused == len(action.calls) else 0
        self._messages.append(turn_messages(turn)[0])
        self._meter.report(action, self._messages)
        self._messages.extend(turn_messages(turn)[1:])

    def _run(self, call: ToolCall, malformed: list[str]) -> Observation:
        left_s = None if self._deadline is None else self._deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return Observation(call.id, "not run: the time limit is reached", is_error=True)
        if problem := self._tools.check(call):
            malformed.append(problem)
            return Observation(call.id, problem, is_error=True)
        return self._tools.call(call, limit_s=left_s)

    def _record(self, turn: Turn) -> None:
        try:
            self._writer.turn(turn)
        except OSError as error:
            raise InfrastructureError(
                f"cannot write {self._writer.path}: {error.strerror}", "Free disk space, then --resume."
            ) from None
        self._num_turns += 1
        if self._on_turn is not None:
            self._on_turn(turn)
