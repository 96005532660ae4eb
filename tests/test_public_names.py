"""The public surface: every name in __all__ exists, and nothing of it costs a torch import up front."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cuda_agent


def measured(*argv):
    """(seconds of the fastest of three runs, completed process)."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - start)
    return min(times), done


def test_every_public_name_is_there():
    assert len(set(cuda_agent.__all__)) == len(cuda_agent.__all__)
    for name in cuda_agent.__all__:
        assert getattr(cuda_agent, name) is not None
        assert name in dir(cuda_agent)
    for name in cuda_agent.__all__:
        value = getattr(cuda_agent, name)
        if callable(value):
            assert value.__module__.startswith("cuda_agent"), name
            assert value.__doc__, name


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(cuda_agent.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.asname for node in block.body for alias in node.names}
    assert seen | {"__version__"} == set(cuda_agent.__all__)


def test_import_takes_no_torch_and_under_half_a_second():
    seconds, done = measured(
        "-c", "import sys, cuda_agent; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False"]
    assert seconds < 0.5


def test_help_takes_no_torch_and_under_half_a_second():
    seconds, done = measured("-m", "cuda_agent", "--help")
    assert done.returncode == 0
    for command in ("optimize", "judge", "explain", "compare", "export", "doctor", "demo", "new"):
        assert command in done.stdout
    assert seconds < 0.5
    code = (
        "import sys\nfrom cuda_agent.cli.main import run\nassert run(['--help']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        cuda_agent.no_such_name  # noqa: B018  (the access is the test)
