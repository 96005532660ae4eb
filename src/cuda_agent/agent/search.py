"""Glob and Grep over the workspace."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from cuda_agent.agent import grep_script
from cuda_agent.agent.output import printable
from cuda_agent.agent.paths import Confined, ToolError

_MAX_FOUND = 200
_MAX_WALKED = 100_000
_MAX_BYTES = 4 * 2**20


class SearchTools:
    """Tools that find files and text.

    Args:
        paths: the workspace.
        ripgrep: program to search with; ``None`` uses our own search.
        limit_s: longest search, seconds.
    """

    def __init__(self, paths: Confined, *, ripgrep: str | None = None, limit_s: float = 20.0) -> None:
        self._paths = paths
        self._ripgrep = ripgrep
        self._limit_s = limit_s

    def tools(self) -> dict[str, Callable[..., str]]:
        """The tools by name."""
        return {"Glob": self.glob, "Grep": self.grep}

    def glob(self, pattern: str, path: str = ".") -> str:
        """Find files by name pattern, newest first.

        Args:
            pattern: such as `kernels/*.cu` or `**/*.{cpp,h}`.
            path: folder to search in; the workspace when left out.
        """
        root = self._paths.resolve(path)
        if not root.is_dir():
            raise ToolError(f"{path} is not a folder")
        pattern = pattern.removeprefix(f"{self._paths.root}/")
        if ".." in Path(pattern).parts or Path(pattern).is_absolute():
            raise ToolError(f"{pattern} leads out of {path}; the pattern is relative to it")
        found: set[Path] = set()
        for one in grep_script.braces(pattern):
            found.update(itertools.islice(self._matching(root, one), _MAX_WALKED))
        newest = sorted(found, key=lambda file: (-file.stat().st_mtime, file))
        lines = [self._paths.show(file) for file in newest[:_MAX_FOUND]]
        if len(newest) > _MAX_FOUND:
            lines.append(f"[... {len(newest) - _MAX_FOUND} more files ...]")
        return "\n".join(lines) or f"no file matches {pattern}"

    def grep(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        output_mode: Literal["files_with_matches", "content", "count"] = "content",
        ignore_case: bool = False,
        context: int = 0,
        multiline: bool = False,
        head_limit: int = 200,
    ) -> str:
        """Search file contents by regular expression.

        Args:
            pattern: the regular expression.
            path: file or folder to search in; the workspace when left out.
            glob: only files whose name matches, such as `*.cu`.
            output_mode: what to list: matching lines, names of files, or counts.
            ignore_case: upper and lower case are the same.
            context: lines to show around each matching line.
            multiline: the pattern may span lines, and `.` matches line ends.
            head_limit: show at most this many lines.
        """
        root = self._paths.resolve(path)
        if not root.exists():
            raise ToolError(f"{path} does not exist")
        where = self._paths.show(root)
        if self._ripgrep:
            argv = [self._ripgrep, *_ripgrep_flags(output_mode, ignore_case, context, multiline)]
            argv += ["--glob", glob] if glob else []
            argv += ["-e", pattern, "--", where]
        else:
            request = {
                "root": where,
                "pattern": pattern,
                "ignore_case": ignore_case,
                "multiline": multiline,
                "glob": glob,
                "mode": output_mode,
                "context": max(0, context),
            }
            argv = [sys.executable, "-I", "-S", grep_script.__file__, json.dumps(request)]
        lines = [line.removeprefix("./") for line in self._run(argv).splitlines()]
        shown = lines[: max(1, head_limit)]
        if len(lines) > len(shown):
            shown.append(f"[... {len(lines) - len(shown)} more lines ...]")
        return "\n".join(shown) or "no match"

    def _matching(self, root: Path, pattern: str) -> Iterator[Path]:
        try:
            for file in root.glob(pattern):
                if file.is_file() and file.resolve().is_relative_to(self._paths.root):
                    yield self._paths.resolve(str(file))
        except (ValueError, NotImplementedError, OSError) as error:
            raise ToolError(f"bad pattern {pattern!r}: {error}") from None

    def _run(self, argv: list[str]) -> str:
        with subprocess.Popen(
            argv,
            cwd=self._paths.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            timer = threading.Timer(self._limit_s, process.kill)
            timer.start()
            try:
                output = process.stdout.read(_MAX_BYTES)
                if len(output) == _MAX_BYTES:
                    process.kill()
                complaint = process.stderr.read(4096)
                status = process.wait()
            finally:
                timer.cancel()
                process.kill()
        if status == 2:
            raise ToolError(printable(complaint).strip())
        if status < 0 and len(output) < _MAX_BYTES:
            raise ToolError(
                f"the search took more than {self._limit_s:.0f} s; use a simpler pattern or a narrower path"
            )
        return printable(output)


def find_ripgrep() -> str | None:
    """Path of ripgrep, where it is installed."""
    return shutil.which("rg")


def _ripgrep_flags(mode: str, ignore_case: bool, context: int, multiline: bool) -> list[str]:
    # --no-ignore: an ignore file of a repository around the workspace must not hide it.
    flags = [
        "--no-config",
        "--no-ignore",
        "--no-messages",
        "--color=never",
        "--no-heading",
        "--with-filename",
    ]
    flags += ["--sort=path", "--max-filesize=16M", "--max-columns=500", "--max-columns-preview"]
    flags += {"files_with_matches": ["-l"], "count": ["-c"], "content": ["-n", f"-C{max(0, context)}"]}[mode]
    flags += ["--ignore-case"] if ignore_case else []
    return flags + (["--multiline", "--multiline-dotall"] if multiline else [])
