"""Checkpoints from which training goes on exactly: weights, optimisers, random state, place in the data."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import InfrastructureError, UsageError

_NAME = re.compile(r"step-(\d{6})\.pt")


class Checkpoints:
    """The last few states of one stage.

    Each is one file, written beside its place, synced and renamed: a kill leaves the old ones whole.

    Args:
        folder: made when needed.
        keep: how many stay.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state after ``step`` updates, with torch's and Python's random state.

        Raises:
            InfrastructureError: it cannot be written.
        """
        path = self._folder / f"step-{step:06d}.pt"
        save_file(path, {**state, "step": step, "random": random_state()})
        for old in self.steps()[: -self._keep]:
            self._path(old).unlink(missing_ok=True)
        return path

    def steps(self) -> list[int]:
        """Steps of the states that are there, in order."""
        if not self._folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def load(self, step: int, *, device: torch.device | str) -> dict[str, Any]:
        """A state; the random state is put back.

        Raises:
            UsageError: the file is damaged.
        """
        state = load_file(self._path(step), device=device)
        set_random_state(state["random"])
        return state

    def drop_after(self, step: int) -> None:
        """Remove later states, to go on from this one."""
        for later in self.steps():
            if later > step:
                self._path(later).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}.pt"


def save_file(path: Path, state: Mapping[str, Any]) -> None:
    """Write a file of tensors in one step.

    Raises:
        InfrastructureError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise InfrastructureError(f"cannot write {path}: {error.strerror}", "Free disk space.") from None


def load_file(path: Path, *, device: torch.device | str) -> dict[str, Any]:
    """Read a file of tensors; nothing in it is executed.

    Raises:
        UsageError: not there, or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError) as error:
        raise UsageError(f"cannot read {path}: {str(error)[:120]}", "Delete it and go on.") from None
    return state


def random_state() -> dict[str, Any]:
    """Of torch on CPU and CUDA, and of Python."""
    version, numbers, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": [version, list(numbers), gauss]}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Inverse of :func:`random_state`."""
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
