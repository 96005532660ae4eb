"""A module that runs new kernels where they were verified, and the original everywhere else."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from cuda_agent.signature import describe_inputs


class Fallback(StrEnum):
    """Why a call went to the original module."""

    NO_KERNELS = "there is no verified kernel"
    TRAINING = "the module is in training mode (call .eval())"
    AUTOCAST = "autocast is on"
    GRADIENT = "a gradient is needed (call it under torch.no_grad())"
    KEYWORDS = "arguments were given that were not verified"
    TENSOR_TYPE = "an argument is a tensor of another class"
    INPUTS = "these shapes, dtypes or strides were not verified"
    DEVICE = "this device was not verified"
    PARAMETERS = "the parameters have another dtype, shape or device than verified"


@dataclass(frozen=True)
class Verified:
    """What a verdict covers.

    Attributes:
        inputs: for each case, the inputs as :func:`describe_inputs` writes them.
        device_type: ``cpu`` or ``cuda``.
        device_name: name of the GPU verified on; not compared on cpu.
    """

    inputs: tuple[tuple[str, ...], ...]
    device_type: str
    device_name: str | None = None


@dataclass
class _Synced:
    """A candidate whose parameters are the original's, and what to watch to know that they still are."""

    module: nn.Module
    device: torch.device | None
    watched: list[tuple[dict[str, Any], str, torch.Tensor, int, int]]


class OptimizedModule(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy here
    """The original module with new kernels under it. Inference only.

    It has the original's parameters, buffers and ``state_dict``: they are the same objects. A call
    runs the new kernels where its inputs, device and mode were verified and no gradient is needed, and
    the original otherwise, with one warning for each kind of reason. ``prepare()`` of the new module
    runs again when parameters or buffers were replaced, moved, or changed in place. Inside
    ``torch.compile`` the original is traced. In-place changes made through ``.data``, or of tensors
    created in inference mode, leave no trace: call :meth:`refresh` after one.

    Args:
        original: the module that was optimised; training mode and device are taken as they are.
        make: makes a new ``ModelNew`` (on the CPU, its own weights); ``None`` when there are no kernels.
        verified: what the verdict covers.
    """

    def __init__(self, original: nn.Module, make: Callable[[], nn.Module] | None, verified: Verified) -> None:
        super().__init__()
        shared = {key: original.__dict__[key] for key in ("_parameters", "_buffers", "_modules")}
        # Past nn.Module.__setattr__: a registered submodule would prefix every key of the state_dict.
        self.__dict__.update(
            shared,
            _original=original,
            _make=make,
            _verified=verified,
            _synced=None,
            _mismatch=False,
            _known={},
            _warned=set(),
            _lock=threading.RLock(),
        )
        self.training = original.training

    @property
    def original(self) -> nn.Module:
        """The module that was optimised."""
        module: nn.Module = self.__dict__["_original"]
        return module

    @property
    def optimized(self) -> bool:
        """Whether there are kernels at all."""
        return self.__dict__["_make"] is not None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the new kernels, or the original where they were not verified."""
        if torch.compiler.is_compiling():
            return self.original(*args, **kwargs)
        positional = self._positional(args, kwargs) if kwargs else args
        reason = Fallback.KEYWORDS if positional is None else self.why_not(*positional)
        if reason is not None or positional is None:
            self._warn(reason or Fallback.KEYWORDS, args)
            return self.original(*args, **kwargs)
        module = self.__dict__["_synced"].module
        device = _device_of(positional)
        if device is not None and device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return module(*positional)
        return module(*positional)

    def why_not(self, *args: Any) -> Fallback | None:
        """Why a call with these arguments would go to the original; ``None`` if it would not."""
        state = self.__dict__
        if state["_make"] is None:
            return Fallback.NO_KERNELS
        if self.training or self.original.training:
            return Fallback.TRAINING
        if torch.is_autocast_enabled(state["_verified"].device_type):
            return Fallback.AUTOCAST
        return self._inputs_reason(args) or self._parameters_reason(args) or self._gradient_reason(args)

    def refresh(self) -> None:
        """Take the parameters anew (and run ``prepare()``) at the next call."""
        self.__dict__["_synced"] = None
        self.__dict__["_mismatch"] = False

    def _inputs_reason(self, args: Sequence[Any]) -> Fallback | None:
        key = tuple(_key(value) for value in args)
        known: dict[Any, Fallback | None] = self.__dict__["_known"]
        if key not in known:
            if len(known) > 4096:  # endless new shapes must not grow without bound
                known.clear()
            known[key] = self._check_inputs(args)
        return known[key]

    def _check_inputs(self, args: Sequence[Any]) -> Fallback | None:
        verified: Verified = self.__dict__["_verified"]
        tensors = list(_tensors(args))
        if any(type(t) not in (torch.Tensor, nn.Parameter) for t in tensors):
            return Fallback.TENSOR_TYPE
        if describe_inputs(args) not in verified.inputs:
            return Fallback.INPUTS
        devices = {t.device for t in tensors}
        if len(devices) > 1 or any(d.type != verified.device_type for d in devices):
            return Fallback.DEVICE
        for device in devices:
            if device.type == "cuda" and torch.cuda.get_device_name(device) != verified.device_name:
                return Fallback.DEVICE
        return None

    def _parameters_reason(self, args: Sequence[Any]) -> Fallback | None:
        if self.__dict__["_synced"] is None or not self._is_current():
            with self.__dict__["_lock"]:
                self._sync()
        if self.__dict__["_mismatch"]:
            return Fallback.PARAMETERS
        device, own = _device_of(args), self.__dict__["_synced"].device
        return Fallback.PARAMETERS if None not in (device, own) and device != own else None

    def _gradient_reason(self, args: Sequence[Any]) -> Fallback | None:
        if not torch.is_grad_enabled():
            return None
        watched = self.__dict__["_synced"].watched
        needed = any(t.requires_grad for _, _, t, _, _ in watched) or any(
            t.requires_grad for t in _tensors(args)
        )
        return Fallback.GRADIENT if needed else None

    def _is_current(self) -> bool:
        for owner, key, tensor, version, pointer in self.__dict__["_synced"].watched:
            if owner.get(key) is not tensor or _version(tensor) != version or tensor.data_ptr() != pointer:
                return False
        return True

    def _sync(self) -> None:
        """Make a candidate that holds the original's tensors. Changes ``_synced`` and ``_mismatch``."""
        make = self.__dict__["_make"]
        with torch.random.fork_rng(devices=[]):  # the constructor's draws must not shift the caller's
            module: nn.Module = make().eval()
        expected = {k: (v.shape, v.dtype) for k, v in module.state_dict().items()}
        actual = {k: (v.shape, v.dtype) for k, v in self.original.state_dict().items()}
        watched = [
            (owner, key, tensor, _version(tensor), tensor.data_ptr())
            for owner, key, tensor in _owned_tensors(self.original)
        ]
        devices = {tensor.device for _, _, tensor, _, _ in watched}
        device = next(iter(devices), None)
        self.__dict__["_mismatch"] = expected != actual or len(devices) > 1 or self._wrong_type(device)
        self.__dict__["_synced"] = _Synced(module, device, watched)
        if self.__dict__["_mismatch"]:
            return
        _share(self.original, module)
        if device is not None:
            module.to(device)
        elif self.__dict__["_verified"].device_type == "cuda":
            module.to("cuda")
        if callable(prepare := getattr(module, "prepare", None)):
            with torch.no_grad():
                prepare()

    def _wrong_type(self, device: torch.device | None) -> bool:
        return device is not None and device.type != self.__dict__["_verified"].device_type

    def _positional(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        try:
            bound = inspect.signature(self.original.forward).bind(*args, **kwargs)
        except TypeError:
            return None  # the original's own error is the one to show
        return None if bound.kwargs else bound.args

    def _warn(self, reason: Fallback, args: Sequence[Any]) -> None:
        warned: set[Fallback] = self.__dict__["_warned"]
        if reason in warned:
            return
        warned.add(reason)
        about = ""
        if reason is Fallback.INPUTS:
            cases = " or ".join("(" + ", ".join(c) + ")" for c in self.__dict__["_verified"].inputs)
            about = f": got ({', '.join(describe_inputs(args))}), verified {cases}"
        warnings.warn(f"running the original module: {reason}{about}", RuntimeWarning, stacklevel=5)

    # The module tree is the original's: whatever walks or changes it goes there.

    def train(self, mode: bool = True) -> OptimizedModule:
        """Set training mode on the original and here."""
        self.original.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The original's state_dict."""
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the original; ``prepare()`` runs again at the next call."""
        self.refresh()
        return self.original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.refresh()
        self.original._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> OptimizedModule:
        self.refresh()
        self.original._apply(*args, **kwargs)
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "_original" or "_original" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        # The kernels are shared: an extension module can neither be copied nor needs to be.
        state = self.__dict__
        made = OptimizedModule(copy.deepcopy(self.original, memo), state["_make"], state["_verified"])
        memo[id(self)] = made
        return made

    def __reduce__(self) -> Any:
        state = self.__dict__
        return OptimizedModule, (self.original, state["_make"], state["_verified"])


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.dtype, value.stride(), value.device
    if isinstance(value, list | tuple):
        return type(value), tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return dict, tuple((k, _key(v)) for k, v in value.items())
    return type(value), repr(value)


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _device_of(args: Sequence[Any]) -> torch.device | None:
    tensor: torch.Tensor | None = next(_tensors(args), None)
    return None if tensor is None else tensor.device


def _version(tensor: torch.Tensor) -> int:
    # Tensors made in inference mode have no version counter.
    return 0 if tensor.is_inference() else tensor._version


def _owned_tensors(module: nn.Module) -> Any:
    """(dict that holds it, key, tensor) of every parameter and buffer."""
    for part in module.modules():
        for owner in (part._parameters, part._buffers):
            for key, tensor in owner.items():
                if tensor is not None:
                    yield owner, key, tensor


def _share(original: nn.Module, new: nn.Module) -> None:
    """Put the original's parameters and buffers into ``new`` under the same names."""
    for prefix, part in original.named_modules(remove_duplicate=False):
        try:
            target = new.get_submodule(prefix)
        except AttributeError:
            continue  # a submodule without state, which the new module may leave out
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
            for own in (target._parameters, target._buffers):
                if tensor is not None and key in own:
                    own[key] = tensor
