"""The dispatcher guard: which PyTorch operators a candidate's forward really runs.

Runs inside the candidate's process: standard library and torch only, here and in what it imports.

Covers: every operator that passes torch's dispatcher on the guarded thread, whatever called it: tensor
methods, torch.*, torch.nn.functional (names bound early too), torch.ops, torch._C._nn, TorchScript,
autograd functions, and C++ (``at::``, ``torch::``) inside an extension. Operators of other namespaces
are refused whole, since what they call inside is not seen.

Does not cover: other threads (the mode is thread-local), kernels called past the dispatcher
(``at::native::``; the symbol scan names them), memory read through numpy, DLPack or a raw pointer, and
code that takes the mode off its stack in C++. A hostile candidate can lie to it: what the guard
reports can lower a verdict, never raise one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from cuda_agent.judge.exchange import leaves

_ALLOCATIONS = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "zeros",
        "zeros_like",
        "new_zeros",
        "full",
        "full_like",
        "new_full",
        "ones",
        "ones_like",
        "new_ones",
    ]
)
"""Allocations. ``ones`` is ``full`` with 1: refusing it would serve nothing."""

_METADATA = frozenset(
    [
        "size",
        "stride",
        "dim",
        "numel",
        "storage_offset",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "is_contiguous",
        "is_pinned",
        "is_same_size",
        "is_complex",
        "is_floating_point",
        "is_non_overlapping_and_dense",
        "record_stream",
        "_record_function_enter",
        "_record_function_enter_new",
        "_record_function_exit",
    ]
)
"""Reads shapes or tells the allocator about a stream; touches no element."""

_METADATA_IN_PLACE = frozenset(
    ["detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"]
)
"""Change how a tensor looks at its storage; move no data."""

_LAZY_ARITHMETIC = frozenset(["_conj", "_neg_view", "conj", "_fw_primal", "_make_dual"])
"""Return an alias, yet stand for a change of values."""

_OUT_OF_SCOPE = frozenset({"profiler"})


class ForbiddenOperator(RuntimeError):
    """A forward called an operator that works on data."""


class ComputeGuard(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Records, and by default refuses, operators that work on data.

    Allowed: allocations (``empty``, ``zeros``, ``full``, ``ones`` and their ``_like``/``new_`` forms),
    views whose result really shares the storage of an argument, and metadata. Everything else is a
    violation: casts, copies (a ``contiguous()``, ``reshape()`` or ``to()`` that copies), in-place and
    ``out=`` forms, ``item()``. A violation stays recorded when the candidate catches the error.

    Args:
        refuse: raise :class:`ForbiddenOperator` at a violation, so that a fallback fails too; else
            only record it.
        capture_only: for ``prepare()``, where any operator may run: a violation only while the current
            CUDA stream is being captured, since a captured operator would run again in forward.

    Attributes:
        violations: operator name (``aten::mm``) to number of calls, forbidden ones.
        operators: the same for all operators seen.
        tampered: the mode was no longer on top of its stack when it ended.
    """

    def __init__(self, *, refuse: bool = True, capture_only: bool = False) -> None:
        super().__init__()
        self.refuse = refuse
        self.capture_only = capture_only
        self.violations: dict[str, int] = {}
        self.operators: dict[str, int] = {}
        self.tampered = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its whole compiler stack (seconds) to wrap a mode never compiled."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for each operator."""
        del types
        kwargs = kwargs or {}
        name: str = func._schema.name
        self.operators[name] = self.operators.get(name, 0) + 1
        if self.capture_only:
            if _capturing():
                self._violation(name)
            return func(*args, **kwargs)
        if is_free(func._schema):
            return func(*args, **kwargs)
        if not may_alias(func._schema):
            self._violation(name)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if not _all_alias(result, (args, kwargs)):
            self._violation(name)
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the guarded region; notes when someone changed the stack of modes."""
        self.tampered |= _get_current_dispatch_mode() is not self
        super().__exit__(kind, error, trace)

    def _violation(self, name: str) -> None:
        self.violations[name] = self.violations.get(name, 0) + 1
        if self.refuse:
            where = "under CUDA graph capture in prepare()" if self.capture_only else "in forward()"
            raise ForbiddenOperator(
                f"{name} works on data, which a PyTorch operator may not do {where}; "
                "allocate, take views, and call cuda_extension"
            )


def is_free(schema: Any) -> bool:
    """Whether an operator (``torch._C.FunctionSchema``) allocates, reads metadata, or marks a profile."""
    namespace, _, name = schema.name.partition("::")
    if namespace in _OUT_OF_SCOPE:
        return True
    if namespace != "aten":
        return False
    if name in _ALLOCATIONS:
        return not any(_writes(argument) for argument in schema.arguments)  # not the out= form
    return name in _METADATA or name in _METADATA_IN_PLACE


def may_alias(schema: Any) -> bool:
    """Whether an operator's schema says: returns aliases of arguments, writes none."""
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or name in _LAZY_ARITHMETIC or any(_writes(a) for a in schema.arguments):
        return False
    return bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)


def _writes(argument: Any) -> bool:
    return bool(argument.alias_info is not None and argument.alias_info.is_write)


def _all_alias(result: Any, arguments: Any) -> bool:
    """Whether each tensor of the result shares the storage of some argument."""
    owned = {_storage(tensor) for tensor in leaves(arguments)}
    return all(_storage(tensor) in owned for tensor in leaves(result))


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _capturing() -> bool:
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
