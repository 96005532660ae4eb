"""The entry point, and the one place where errors become a line on stderr and an exit code.

===== ==========================================================
 code  meaning
===== ==========================================================
 0     done; for ``judge``: a verdict was reached, whatever it is
 1     the error named on stderr
 2     a bad option, file or target
 3     ``optimize``: the run ended without a verified kernel
 70    a defect of ours; the traceback is in the log file named
 130   interrupted
===== ==========================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from cuda_agent.config import cache_dir
from cuda_agent.errors import CudaAgentError

EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
# Newer versions of typer carry a copy of click: either way the class is among the bases.
_ClickException: type[BaseException] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    from cuda_agent.cli.app import app

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        code = app(list(argv) or ["--help"], prog_name="cuda-agent", standalone_mode=False)
        sys.stdout.flush()
    except CudaAgentError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader of our output went away; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _ClickException as error:
        return _fail(f"{_message(error)} (see {_command(error)} --help)", 2)
    except Exception as error:  # noqa: BLE001  the one capture point
        return _fail(_defect(error, argv), EXIT_DEFECT)
    if code == EXIT_INTERRUPTED:
        return _interrupted()  # Typer makes an exit code of a KeyboardInterrupt and says nothing.
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    """The end after Ctrl-C; a further one, in the last moments of the process, is not heard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _fail("interrupted", EXIT_INTERRUPTED)


def _fail(text: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"cuda-agent: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code


def _message(error: BaseException) -> str:
    formatted: str = error.format_message()  # type: ignore[attr-defined]
    return formatted.replace(": Value error, ", ": ").strip().rstrip(".")


def _command(error: BaseException) -> str:
    """The command that was called, as typed."""
    return getattr(getattr(error, "ctx", None), "command_path", "cuda-agent")


def _defect(error: Exception, argv: Sequence[str]) -> str:
    text = f"cuda-agent {' '.join(argv)}\n\n{''.join(traceback.format_exception(error))}"
    about = f"defect in cuda-agent: {type(error).__name__}: {error}"
    for folder in (cache_dir() / "logs", Path(tempfile.gettempdir())):
        path = folder / f"cuda-agent-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return f"{about}. The traceback is in {path}; please report it."
    return f"{about}. The traceback could not be written anywhere."


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    # SIGTERM ends a run as Ctrl-C does: the best version is kept.
    raise KeyboardInterrupt
