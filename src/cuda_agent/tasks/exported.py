"""A task made from a module's exported program, for modules whose source cannot rebuild them.

``torch.export`` fixes the program for each example's shapes; the task's ``Model`` runs that program as
plain PyTorch and has the module's own ``state_dict``. The weights lie beside the source in
``weights.pt`` (https://docs.pytorch.org/docs/stable/export.html).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuda_agent.errors import InfrastructureError, TaskError

WEIGHTS = "weights.pt"
_REMEDY = "Write the module as a task file, or make it exportable (no data-dependent Python)."
# Checks that export writes into the program; they compute nothing.
_ASSERTION = re.compile(r"^\s*_assert_")
_KNOWN_GLOBALS = {"inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree"}

_HEAD = '''"""{name}, as torch.export sees it: a program for fixed shapes, weights in {weights}."""

from pathlib import Path

import torch
from torch import device, inf, nan, nn  # noqa: F401 (the programs below use them)


class Part(nn.Module):
    """Holds parameters and buffers under the names of the original."""


def put(module, name, tensor, kind):
    """Register a tensor under a dotted name."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in module._modules:
            module.add_module(parent, Part())
        module = module._modules[parent]
    if kind == "parameter":
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
    else:
        module.register_buffer(last, tensor, persistent=kind == "buffer")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        state = torch.load(Path(__file__).with_name("{weights}"), map_location="cpu", weights_only=True)
        for kind, tensors in state.items():
            for name, tensor in tensors.items():
                put(self, name, tensor.clone(), kind)
'''


def exported_source(module: nn.Module, examples: Sequence[tuple[Any, ...]], *, name: str) -> str:
    """Source of ``Model`` for the module, without ``get_inputs``; see :func:`save_weights` for its state.

    Args:
        module: in eval mode, on the device it is to run on.
        examples: arguments of each input case.
        name: for the docstring.

    Raises:
        TaskError: the module cannot be exported, changes its state or inputs, or gives non-tensors.
    """
    programs = [_export(module, case) for case in examples]
    arguments = _argument_names(programs[0])
    parts = [_HEAD.format(name=name, weights=WEIGHTS)]
    if len(programs) == 1:
        parts.append(_method("forward", arguments, _body(programs[0], arguments)))
        return "\n".join(parts)
    parts.append(_method("forward", arguments, _dispatch(arguments, examples)))
    for index, program in enumerate(programs):
        parts.append(_method(f"case_{index}", arguments, _body(program, arguments)))
    return "\n".join(parts)


def save_weights(module: nn.Module, examples: Sequence[tuple[Any, ...]], path: Path) -> None:
    """Write the tensors that the source's ``Model`` registers, by kind and dotted name.

    Raises:
        TaskError: the module cannot be exported.
        InfrastructureError: the file cannot be written.
    """
    program = _export(module, examples[0])
    persistent = set(module.state_dict())
    state: dict[str, dict[str, torch.Tensor]] = {"parameter": {}, "buffer": {}, "constant": {}}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            continue
        kind = spec.kind.name.lower()
        value = _tensor(program, spec.target)
        if kind == "buffer" and spec.target not in persistent:
            kind = "constant"
        state[kind if kind in state else "constant"][spec.target] = value.detach().cpu().contiguous()
    try:
        torch.save(state, path)
    except (OSError, RuntimeError) as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "Free space or choose another out."
        ) from None


def _tensor(program: Any, target: str) -> torch.Tensor:
    found = program.state_dict.get(target)
    value: torch.Tensor = found if found is not None else program.constants[target]
    return value


def _export(module: nn.Module, case: tuple[Any, ...]) -> Any:
    try:
        with torch.no_grad():
            program = torch.export.export(module, case, strict=False)
    except Exception as error:  # noqa: BLE001  user code and the exporter may raise anything
        about = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise TaskError(f"torch.export cannot export {type(module).__name__}: {about}", _REMEDY) from None
    signature = program.graph_signature
    functional = all(spec.kind.name == "USER_OUTPUT" for spec in signature.output_specs)
    if not functional or any(_changes_placeholder(node) for node in program.graph.nodes):
        raise TaskError(f"{type(module).__name__} changes its state or its inputs", _REMEDY)
    if any(type(s.arg).__name__ != "TensorArgument" for s in signature.output_specs):
        raise TaskError(
            f"{type(module).__name__} returns something that is no tensor", "Return tensors only."
        )
    if any(node.op in ("get_attr", "call_module") for node in program.graph.nodes):
        raise TaskError(f"{type(module).__name__} has control flow inside its exported program", _REMEDY)
    return program


def _changes_placeholder(node: Any) -> bool:
    """Whether an in-place operator writes to state or to an input (a view of one is not followed)."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return False
    pairs = zip(schema.arguments, node.args, strict=False)
    written = [value for argument, value in pairs if argument.alias_info and argument.alias_info.is_write]
    return any(getattr(value, "op", "") == "placeholder" for value in written)


def _argument_names(program: Any) -> list[str]:
    specs = program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]


def _body(program: Any, arguments: Sequence[str]) -> list[str]:
    """Statements of one program: state by name, the operators, and the outputs in their structure."""
    from torch.utils import _pytree as pytree

    own = _argument_names(program)
    lines = [f"{mine} = {given}" for mine, given in zip(own, arguments, strict=True) if mine != given]
    used = {node.name for node in program.graph.nodes if node.users}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT" and spec.arg.name in used:
            lines.append(f"{spec.arg.name} = {_attribute(spec.target)}")
    code = program.graph.python_code("self")
    if unknown := set(code.globals) - _KNOWN_GLOBALS:
        raise TaskError(f"the exported program uses {', '.join(sorted(unknown))}", _REMEDY)
    inner = code.src.split(":\n", 1)[1].splitlines()
    lines += [line.strip() for line in inner if line.strip() and not _ASSERTION.match(line)]
    if lines[-1].startswith("return "):
        lines.pop()
    names = [_Name(spec.arg.name) for spec in program.graph_signature.output_specs]
    lines.append(f"return {pytree.tree_unflatten(names, program.call_spec.out_spec)!r}")
    return lines


class _Name:
    """A variable whose ``repr`` is its name, so that the repr of a container is source code."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _attribute(target: str) -> str:
    text = "self"
    for part in target.split("."):
        text = (
            f"{text}.{part}" if part.isidentifier() and not iskeyword(part) else f'getattr({text}, "{part}")'
        )
    return text


def _dispatch(arguments: Sequence[str], examples: Sequence[tuple[Any, ...]]) -> list[str]:
    lines = []
    for index, case in enumerate(examples):
        conditions = [_condition(name, value) for name, value in zip(arguments, case, strict=True)]
        lines.append(f"if {' and '.join(conditions)}:")
        lines.append(f"    return self.case_{index}({', '.join(arguments)})")
    lines.append('raise ValueError("no program for these inputs")')
    return lines


def _condition(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{name}.shape == {tuple(value.shape)} and {name}.dtype == {value.dtype}"
    return f"{name} == {value!r}"


def _method(name: str, arguments: Sequence[str], lines: Sequence[str]) -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"    def {name}(self, {', '.join(arguments)}):\n{body}\n"
