"""The loop of a worker process: a message in, a handler, an answer out.

Standard library and torch only. The worker is told its work over a socket whose number is its first
argument; what it prints goes nowhere the judge reads.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent.judge.channel import Channel, ChannelClosed
from cuda_agent.judge.exchange import Block, leaves
from cuda_agent.judge.failure_kind import FailureKind

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]


class Refused(Exception):
    """A handler's plain answer that the task or the candidate cannot be used."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """Serves messages until the judge hangs up.

    A message is ``{"op": NAME, ...}``; an answer has ``"ok": true`` or ``"error": {...}``. Shared memory
    is mapped once under a slot name (op ``map``) and then referred to by it.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.slots: dict[str, Block] = {}
        self.fds: list[int] = []
        self.device = "cpu"
        self.handlers: dict[str, Handler] = {"map": self._map, "probe": self._probe}

    def serve(self) -> None:
        """Answer until the channel closes."""
        while True:
            try:
                message, self.fds = self.channel.receive()
            except ChannelClosed:
                return
            self.channel.send(self._answer(message))

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": True, **self.handlers[message["op"]](message)}
        except Refused as refusal:
            return {"error": {"kind": refusal.kind, "message": str(refusal), "trace": ""}}
        except Exception as error:  # noqa: BLE001  the worker's one capture point
            return {"error": describe_error(error)}

    def _map(self, message: Mapping[str, Any]) -> dict[str, Any]:
        for slot, fd in zip(message["slots"], self.fds, strict=True):
            if (old := self.slots.pop(slot["name"], None)) is not None:
                old.close()
            self.slots[slot["name"]] = Block(slot["nbytes"], device=slot["device"], fd=fd)
        return {}

    def _probe(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A known-good computation: shows that the device and this machine work."""
        import torch

        x = torch.arange(1024, dtype=torch.float32, device=message["device"])
        total = float((x * 2).sum().item())
        if total != 1024 * 1023:
            raise RuntimeError(f"known-good probe gave {total}")
        return {}


_KINDS = {
    FailureKind.OUT_OF_MEMORY: ("out of memory", "can't allocate memory", "Cannot allocate memory"),
    FailureKind.ILLEGAL_ACCESS: ("illegal memory access", "misaligned address"),
    FailureKind.CUDA_ERROR: ("device-side assert", "unspecified launch failure", "CUDA error"),
}


def describe_error(error: BaseException) -> dict[str, Any]:
    """Kind, message and the last frames of an exception, as JSON."""
    name = type(error).__name__
    message = str(error)
    found = (kind for kind, words in _KINDS.items() if any(word in message for word in words))
    kind = next(found, FailureKind.EXCEPTION)
    if name == "OutOfMemoryError" or isinstance(error, MemoryError):
        kind = FailureKind.OUT_OF_MEMORY
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    lines = [f"{os.path.basename(f.filename)}:{f.lineno}: {f.line}" for f in frames]  # noqa: PTH119
    return {"kind": kind, "message": f"{name}: {message}"[:4000], "trace": "\n".join(lines)}


def connect() -> Channel:
    """The channel to the judge (its descriptor is the first argument)."""
    return Channel(socket.socket(fileno=int(sys.argv[1])))


def settle(device: str, num_threads: int) -> None:
    """Bring torch up in this process: threads, no gradients, device chosen."""
    import torch

    torch.set_num_threads(num_threads)
    torch.set_grad_enabled(False)
    if device != "cpu":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)


def import_file(name: str, path: str) -> Any:
    """Import a source file as module ``name``, registered in ``sys.modules`` (torch.compile needs it)."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def shares_memory(outputs: Any, inputs: Any) -> bool:
    """Whether any output tensor lies in the storage of an input tensor."""
    held = {leaf.untyped_storage().data_ptr() for leaf in leaves(inputs) if leaf.numel()}
    return any(leaf.untyped_storage().data_ptr() in held for leaf in leaves(outputs) if leaf.numel())
