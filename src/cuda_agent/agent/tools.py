"""The toolbox of an episode. To add a tool: a typed function with a docstring, in one of the groups here."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict

from cuda_agent.agent.background import BackgroundCommand, BackgroundCommands
from cuda_agent.agent.files import FileTools
from cuda_agent.agent.output import cap, writable
from cuda_agent.agent.paths import HOST_FAULTS, Confined, ToolError
from cuda_agent.agent.policy import ToolSpec
from cuda_agent.agent.schema import ArgumentError, check_arguments, tool_spec
from cuda_agent.agent.search import SearchTools, find_ripgrep
from cuda_agent.agent.shell import Shell
from cuda_agent.errors import InfrastructureError
from cuda_agent.sandbox.process import clean_env
from cuda_agent.trajectory import Observation, ToolCall

_MAX_COMMAND_S = 3600.0
# No pager, no colours, no question: nobody sits at this terminal.
_SHELL_ENV = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


class Todo(TypedDict):
    """One entry of the to-do list."""

    content: str
    status: Literal["pending", "in_progress", "completed"]


class ShellTools:
    """Bash, BashOutput, KillBash. ``limit_s`` is the time the episode has left, seconds."""

    def __init__(self, workspace: Path, env: Mapping[str, str]) -> None:
        self._workspace = workspace
        self._shell = Shell(workspace, env)
        self._background = BackgroundCommands()
        self.limit_s = _MAX_COMMAND_S

    def tools(self) -> dict[str, Callable[..., str]]:
        """The tools by name."""
        return {"Bash": self.bash, "BashOutput": self.bash_output, "KillBash": self.kill_bash}

    def bash(
        self,
        command: str,
        timeout_s: float = 300.0,
        *,
        run_in_background: bool = False,
        description: str | None = None,  # noqa: ARG002  (for whoever reads the trajectory)
    ) -> str:
        """Run a command in a persistent bash; its directory, variables and functions stay for the next one.

        Standard input is empty and there is no network. Long output is cut in the middle.

        Args:
            command: the command or script.
            timeout_s: seconds after which the command is killed and the shell restarted.
            run_in_background: start it and return at once; read it with BashOutput, end it with KillBash.
            description: what it does, in a few words.
        """
        if "\0" in command:
            raise ToolError("the command holds a NUL character, which bash cannot take")
        if run_in_background:
            env = self._shell.environment()
            folder = Path(env.get("PWD", self._workspace))
            name = self._background.start(
                command,
                workspace=self._workspace,
                cwd=folder if folder.is_dir() else self._workspace,
                env=env,
            )
            return f"started in the background as {name}"
        limit_s = max(0.1, min(timeout_s, self.limit_s, _MAX_COMMAND_S))
        result = self._shell.run(command, limit_s=limit_s)
        notes = [f"[{result.note}]"] if result.note else []
        if result.exit_code and not result.note:
            notes = [f"[exit status {result.exit_code}]"]
        text = "\n".join(part for part in (result.output.rstrip("\n"), *notes) if part)
        if notes:
            raise ToolError(text)
        return text or "(no output)"

    def bash_output(self, bash_id: str) -> str:
        """Read what a background command printed since it was last read, and whether it still runs.

        Args:
            bash_id: id that Bash returned, such as `bash_1`.
        """
        command = self._find(bash_id)
        text = command.take().rstrip("\n")
        return f"{text}\n[{command.status()}]" if text else f"[{command.status()}, no new output]"

    def kill_bash(self, bash_id: str) -> str:
        """Kill a background command and everything it started.

        Args:
            bash_id: id that Bash returned, such as `bash_1`.
        """
        command = self._find(bash_id)
        command.kill()
        return f"{bash_id}: {command.status()}"

    def close(self) -> None:
        """Kill the shell and all background commands; may run twice."""
        self._background.close()
        self._shell.close()

    def _find(self, name: str) -> BackgroundCommand:
        command = self._background.get(name)
        if command is None:
            known = ", ".join(self._background.names()) or "none was started"
            raise ToolError(f"there is no background command {name}; known: {known}")
        return command


class TodoTools:
    """TodoWrite: the policy's own list."""

    def __init__(self) -> None:
        self.todos: list[Todo] = []

    def tools(self) -> dict[str, Callable[..., str]]:
        """The tools by name."""
        return {"TodoWrite": self.todo_write}

    def todo_write(self, todos: list[Todo]) -> str:
        """Replace your to-do list. Use it to plan a longer piece of work and to keep track of it.

        Args:
            todos: the whole list, in order.
        """
        self.todos = todos
        marks = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}
        return (
            "\n".join(f"{marks[todo['status']]} {todo['content']}" for todo in todos) or "(the list is empty)"
        )


class Toolbox:
    """All tools of one episode over one workspace. Closing kills every process they started.

    Args:
        workspace: folder the tools work in; the file tools are confined to it.
        env: variables to set in the shell, over a clean environment (no secrets, no proxies).
        max_output_chars: a longer answer is cut, head and tail kept.
        use_ripgrep: search with ripgrep where it is installed; our own search otherwise.

    Raises:
        InfrastructureError: the workspace is not a folder.
    """

    def __init__(
        self,
        workspace: Path,
        env: Mapping[str, str],
        max_output_chars: int = 16_000,
        *,
        use_ripgrep: bool = True,
    ) -> None:
        if not workspace.is_dir():
            raise InfrastructureError(f"{workspace} is not a folder", "Lay out a workspace first.")
        paths = Confined(workspace)
        self._workspace = paths.root
        self._max_output_chars = max_output_chars
        self._shell = ShellTools(paths.root, clean_env({**_SHELL_ENV, **env}))
        search = SearchTools(paths, ripgrep=find_ripgrep() if use_ripgrep else None)
        self._functions: dict[str, Callable[..., str]] = {}
        for group in (self._shell, FileTools(paths), search, TodoTools()):
            self._functions.update(group.tools())
        self._specs = {name: tool_spec(name, function) for name, function in self._functions.items()}

    def specs(self) -> list[ToolSpec]:
        """The tools as a policy sees them."""
        return list(self._specs.values())

    def check(self, call: ToolCall) -> str:
        """Why the call cannot be run (no such tool, arguments that do not fit); empty when it can."""
        if call.name not in self._specs:
            close = difflib.get_close_matches(call.name, self._specs, n=1, cutoff=0.5)
            meant = f" Did you mean {close[0]}?" if close else ""
            return f"there is no tool {call.name[:80]!r}.{meant} Tools: {', '.join(self._specs)}"
        try:
            check_arguments(self._specs[call.name].parameters, call.arguments)
        except ArgumentError as error:
            return cap(f"{call.name}: {error}", self._max_output_chars)
        return ""

    def call(self, call: ToolCall, *, limit_s: float | None = None) -> Observation:
        """Run one call, at most ``limit_s`` seconds. What the tool refuses or fails at is an answer.

        Raises:
            InfrastructureError: no shell can be started, or the workspace is gone.
        """
        started = time.monotonic()
        if problem := self.check(call):
            return Observation(call.id, problem, is_error=True)
        arguments = check_arguments(self._specs[call.name].parameters, call.arguments)
        self._shell.limit_s = _MAX_COMMAND_S if limit_s is None else limit_s
        try:
            text, is_error = self._functions[call.name](**arguments), False
        except ToolError as error:
            text, is_error = str(error), True
        except OSError as error:
            if error.errno in HOST_FAULTS or not self._workspace.is_dir():
                raise InfrastructureError(f"tool {call.name} failed: {error}") from None
            text, is_error = f"{call.name} failed: {error.strerror or error}", True
        seconds = time.monotonic() - started
        return Observation(
            call.id, cap(writable(text), self._max_output_chars), is_error=is_error, seconds=seconds
        )

    def close(self) -> None:
        """Kill the shell and all background commands; may run twice."""
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
