"""Hands a command to the judge. What it prints is for reading and decides nothing."""

import json
import os
import sys
from pathlib import Path

WORKSPACE = Path(__file__).resolve().parent.parent


def main(command):
    """Run ``compile``, ``verify`` or ``profile`` and return the exit status."""
    try:
        from cuda_agent.workspace.client import run
    except ImportError:
        return _with_other_python(command)
    return run(command, WORKSPACE)


def _with_other_python(command):
    """This interpreter has no cuda_agent: become the one that laid the workspace out."""
    settings = json.loads((WORKSPACE / "utils" / "settings.json").read_text(encoding="utf-8"))
    python = settings["python"]
    if os.environ.get("CUDA_AGENT_REEXEC") or not os.access(python, os.X_OK):
        print("error: cuda_agent is not installed for this python3; activate its environment", file=sys.stderr)
        return 2
    env = {**os.environ, "CUDA_AGENT_REEXEC": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [settings["python_path"], env.get("PYTHONPATH")]))
    modules = {"compile": "compile", "verify": "verification", "profile": "profiling"}
    os.chdir(WORKSPACE)
    os.execve(python, [python, "-m", "utils." + modules[command]], env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
