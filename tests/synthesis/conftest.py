"""A worker of the filters for the module's tests: started once, as it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.synthesis.filters.client import Client, memory_share

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A worker on the CPU."""
    cache = tmp_path_factory.mktemp("inductor")
    cache.chmod(0o777)
    worker = Client("cpu", num_threads=1, cache=cache, memory_bytes=memory_share(4))
    yield worker
    worker.close()
