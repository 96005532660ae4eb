"""Baselines of tasks on disk, by task, device, versions, precision and threads."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cuda_agent.config import JudgeConfig, Precision, Track, cache_dir
from cuda_agent.judge.baseline_lines import LineTimes, TaskBaselines, Work
from cuda_agent.judge.baseline_names import Line

_log = logging.getLogger(__name__)

# Raise it when what is measured changes its meaning.
_PROTOCOL = 1
_KEY_VERSIONS = ("torch", "cuda", "driver", "python")


def precision_of(config: JudgeConfig) -> Precision:
    """The precision that baselines run under: the paper's track has PyTorch's defaults."""
    return config.precision if config.track is Track.MATCHED else Precision.DEFAULT


class SetCache:
    """What ``cuda-agent baseline`` has measured under one contract on one device.

    Args:
        config: precision.
        kind: ``cpu`` or ``cuda``.
        device_name: as the driver says.
        versions: torch, cuda, driver, python (others do not matter).
        num_threads: of CPU kernels.
    """

    def __init__(
        self,
        config: JudgeConfig,
        *,
        kind: str,
        device_name: str,
        versions: Mapping[str, str],
        num_threads: int,
    ) -> None:
        self._kind = kind
        kept = [versions.get(name, "") for name in _KEY_VERSIONS]
        self._setting = [_PROTOCOL, kind, device_name, *kept, str(precision_of(config)), num_threads]

    def get(self, task_hash: str) -> TaskBaselines:
        """What is known of a task; nothing where the file is absent or cannot be read."""
        try:
            return TaskBaselines.from_dict(json.loads(self._path(task_hash).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return TaskBaselines(self._kind)

    def add(
        self, task_hash: str, lines: Mapping[Line, LineTimes], *, work: Work | None = None
    ) -> TaskBaselines:
        """Store lines beside those known (atomic; a full disk only costs the cache)."""
        known = self.get(task_hash)
        thin = {line: times.thinned() for line, times in lines.items()}
        merged = replace(known, lines={**known.lines, **thin}, work=work or known.work)
        path = self._path(task_hash)
        record = {**merged.to_dict(), "setting": self._setting, "task_hash": task_hash}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                json.dump(record, file)
            Path(file.name).replace(path)
        except OSError as error:
            _log.warning("baselines not cached: %s", os.strerror(error.errno or 0))
        return merged

    def get_tf32_peak(self) -> float | None:
        """The device's measured TF32 rate, FLOP per second."""
        with suppress(OSError, ValueError, KeyError):
            return float(json.loads(self._path("tf32_peak").read_text(encoding="utf-8"))["flops"])
        return None

    def put_tf32_peak(self, flops: float) -> None:
        """Store the device's TF32 rate."""
        path = self._path("tf32_peak")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"flops": flops}), encoding="utf-8")

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(json.dumps([key, *self._setting]).encode()).hexdigest()[:24]
        return cache_dir() / "taskset-baselines" / f"{name}.json"
