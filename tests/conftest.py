"""Caches of the tests lie in a folder of their own that outlives a run (objects compile once)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault(
    "CUDA_AGENT_CACHE", str(Path(tempfile.gettempdir()) / f"cuda-agent-tests-{os.getuid()}")
)
