"""What really runs when a module is called: operators as the dispatcher sees them, and the calls behind them.

One forward gives a graph of dispatched operators (after PyTorch's own decomposition of composites, so that
``nn.ReLU``, ``F.relu``, ``torch.relu`` and ``x.relu()`` are one), each with the tensors it read, its other
arguments, and the call of the public interface (function or module) that it belongs to.

Covers: chains, branches, in-place operators, views. Does not cover: a write through a view that another view
of the same storage reads in part only (counted as read whole), control flow by value (what this input takes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_agent.judge.exchange import leaves

_SIZES = frozenset({"size", "shape", "sizes", "stride", "storage_offset"})
_FORM = frozenset({"device", "layout", "pin_memory", "memory_format", "requires_grad", "non_blocking"})

Ref = tuple[str, Any]
"""Where a tensor comes from: ``("input", i)``, ``("state", name)``, ``("op", i)``, ``("const", "")``."""


@dataclass(frozen=True)
class Op:
    """One dispatched operator.

    Attributes:
        name: ``aten.relu``.
        reads: where its tensor arguments come from.
        hyper: its other arguments by name, defaults filled in, sizes and placement left out.
        outputs: (shape, dtype) of each tensor it gives.
        calls: indices of the calls it happened inside of, outermost first.
        nbytes: read and written.
    """

    name: str
    reads: tuple[Ref, ...]
    hyper: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    calls: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Call:
    """One call of the public interface.

    Attributes:
        name: ``torch.nn.functional.relu``, or the class of a module (``torch.nn.Conv2d``).
        is_module: a module's call.
    """

    name: str
    is_module: bool


@dataclass
class Trace:
    """One forward.

    Attributes:
        ops, calls: in order.
        results: where the outputs come from.
        made_bytes: bytes of all tensors that the operators made: no eager run holds more at once.
    """

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results: tuple[Ref, ...] = ()
    made_bytes: int = 0

    def needed(self) -> set[int]:
        """Indices of the operators that the outputs depend on."""
        todo = [index for kind, index in self.results if kind == "op"]
        found: set[int] = set()
        while todo:
            index = todo.pop()
            if index not in found:
                found.add(index)
                todo += [i for kind, i in self.ops[index].reads if kind == "op"]
        return found

    def executed(self) -> list[str]:
        """Names of the calls that ran an operator which the outputs need, in order."""
        needed = self.needed()
        live = {call for index in needed for call in self.ops[index].calls}
        return [call.name for index, call in enumerate(self.calls) if index in live]

    def read_leaves(self) -> set[Ref]:
        """Inputs and state that the outputs depend on."""
        refs = {ref for index in self.needed() for ref in self.ops[index].reads} | set(self.results)
        return {ref for ref in refs if ref[0] in ("input", "state")}


def trace(model: Any, inputs: Sequence[Any]) -> Trace:
    """Run a module once and record it.

    Args:
        model: on the inputs' device; real or fake tensors.
        inputs: of ``forward``; changed where the module changes them.
    """
    found = Trace()
    recorder = _Recorder(found)
    for index, leaf in enumerate(leaves(list(inputs))):
        recorder.know(leaf, ("input", index))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        recorder.know(tensor, ("state", name))
    with torch.no_grad(), _ModuleCalls(recorder), recorder, _Functions(recorder):
        outputs = model(*inputs)
    found.results = tuple(recorder.origin(leaf) for leaf in leaves(outputs))
    return found


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Fills a :class:`Trace`; holds every tensor, so that identities stay unique."""

    def __init__(self, found: Trace) -> None:
        super().__init__()
        self.found = found
        self.open_calls: list[int] = []
        self._origins: dict[int, Ref] = {}
        self._writers: dict[int, Ref] = {}
        self._held: list[Tensor] = []
        self._storages: dict[int, int] = {}

    def know(self, tensor: Tensor, ref: Ref) -> None:
        self._origins[id(tensor)] = ref
        self._held.append(tensor)

    def origin(self, tensor: Tensor) -> Ref:
        ref = self._origins.get(id(tensor), ("const", ""))
        written = self._writers.get(_storage(tensor), ref)
        return max(ref, written, key=lambda r: r[1] if r[0] == "op" else -1)

    def begin(self, name: str, *, is_module: bool) -> None:
        self.open_calls.append(len(self.found.calls))
        self.found.calls.append(Call(name, is_module))

    def end(self) -> None:
        self.open_calls.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.startswith("prim::"):  # asks where a tensor lies
            return func(*args, **kwargs)
        read = [leaf for leaf in _tensors((args, kwargs))]
        reads = tuple(self.origin(tensor) for tensor in read)
        given = func(*args, **kwargs)
        made = [leaf for leaf in _tensors(given)]
        ref = ("op", len(self.found.ops))
        moved = sum(t.numel() * t.element_size() for t in (*read, *made))
        self.found.ops.append(
            Op(
                name=str(func._schema.name).replace("::", "."),
                reads=reads,
                hyper=_hyper(func, args, kwargs),
                outputs=tuple((tuple(int(s) for s in t.shape), str(t.dtype)[6:]) for t in made),
                calls=tuple(self.open_calls),
                nbytes=0 if _is_view(func) else int(moved),
            )
        )
        for tensor in made:
            self.know(tensor, ref)
            self._count(tensor)
        if func._schema.is_mutable:
            for tensor in _written(func, args, kwargs):
                self._writers[_storage(tensor)] = ref
        return given

    def _count(self, tensor: Tensor) -> None:
        """Bytes made; a view makes none."""
        key = _storage(tensor)
        if key not in self._storages:
            self._storages[key] = int(tensor.numel() * tensor.element_size())
            self.found.made_bytes += self._storages[key]


class _Functions(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Notes which public function each operator belongs to."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._recorder.begin(function_name(func), is_module=False)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.end()


class _ModuleCalls:
    """Notes which module each operator belongs to."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        from torch.nn.modules import module

        def begin(layer: Any, _args: Any) -> None:
            self._recorder.begin(module_name(layer), is_module=True)

        def end(_layer: Any, _args: Any, _output: Any) -> None:
            self._recorder.end()

        self._handles = [
            module.register_module_forward_pre_hook(begin),
            module.register_module_forward_hook(end, always_call=True),
        ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def function_name(func: Any) -> str:
    """The public name of a function that a mode saw (``torch.nn.functional.relu``)."""
    name = resolve_name(func)
    if name is None:
        owner = getattr(func, "__objclass__", None) or getattr(func, "__module__", "")
        name = f"{getattr(owner, '__name__', owner)}.{getattr(func, '__name__', func)}"
    return str(name)


def module_name(layer: Any) -> str:
    """The class of a module; PyTorch's own under ``torch.nn``."""
    kind = type(layer)
    return f"torch.nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.") else str(kind.__name__)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors in nested containers, sets of arguments included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)


def _hyper(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Arguments that are no tensors, by name, defaults filled in, sizes left out."""
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in _SIZES or argument.name in _FORM:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
        if value is not None and next(_tensors(value), None) is None:
            found.append((argument.name, _plain(value)))
    if func._schema.name == "aten::convolution":
        weight = args[1]
        found.append(("kernel", _plain(list(weight.shape[2:]))))
    return tuple(found)


def _plain(value: Any) -> str:
    """One spelling of a value: 1, 1.0 and True stay apart only where they mean different things."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
