"""Capture the graph of a workspace's ``model.py``; runs inside the workspace, as a command.

``python3 -m cuda_agent.agent.playbook.capture --out .playbook/graph.jsonl`` exports the module for each
input case under fake tensors (nothing of the inputs' size is allocated, no GPU is needed) and writes
one JSON object a line. The reader is :mod:`cuda_agent.agent.playbook.graph`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

# Lowered as wholes by the playbook: their decompositions would hide what they are.
KEPT = (
    "linear", "layer_norm", "rms_norm", "group_norm", "instance_norm", "softmax", "log_softmax",
    "silu", "mish", "hardswish", "hardsigmoid", "softplus", "log_sigmoid", "logsumexp", "matmul",
    "softsign", "dropout",
)  # fmt: skip
KINDS = {
    InputKind.PARAMETER: "param",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "const",
    InputKind.USER_INPUT: "input",
}


class Refused(Exception):
    """The module cannot be captured; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Writes the file; prints one line with what was captured or why not."""
    parser = argparse.ArgumentParser(prog="capture", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("model.py"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    try:
        records = list(capture(options.model))
    except Refused as error:
        records = [{"t": "refused", "why": str(error)}]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(r, separators=(",", ":")) for r in records]
    options.out.write_text("".join(line + "\n" for line in lines))
    ops = [r for r in records if r["t"] == "op"]
    cases = sum(r["t"] == "case" for r in records)
    for record in records:
        if record["t"] == "refused":
            print(f"refused: {record['why']}")
            return 1
    print(f"captured {len(ops)} operators over {cases} input case(s) in {len(records)} lines")
    print("pages:", *_pages([len(line) + 1 for line in lines]))
    return 0


def _pages(lengths: Sequence[int], limit: int = 14_000) -> Iterator[str]:
    """Line ranges of at most ``limit`` characters: what one tool answer can show."""
    first, size = 1, 0
    for number, length in enumerate(lengths, 1):
        if size and size + length > limit:
            yield f"{first}-{number - 1}"
            first, size = number, 0
        size += length
    yield f"{first}-{len(lengths)}"


def capture(model_file: Path) -> Iterator[dict[str, Any]]:
    """Records of each input case of a model file.

    Raises:
        Refused: the module cannot be exported.
    """
    try:
        yield from _capture(model_file, FakeTensorMode(allow_non_fake_inputs=False))
        return
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - arbitrary user code ran; real tensors may do better
        first = error
    try:
        yield from _capture(model_file, nullcontext())
    except Refused:
        raise
    except Exception:  # noqa: BLE001 - arbitrary user code
        raise Refused(_reason(first)) from first


def _reason(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"torch.export cannot trace the module: {type(error).__name__}: {text.splitlines()[0][:300]}"


def _capture(model_file: Path, mode: AbstractContextManager[Any]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    with mode, torch.no_grad():
        source = _load(model_file)
        weights = list(getattr(source, "CASE_WEIGHTS", [1.0]))
        model = source.Model(*source.get_init_inputs()).eval()
        cases = [
            tuple(source.get_inputs(case)) if len(weights) > 1 else tuple(source.get_inputs())
            for case in range(len(weights))
        ]
    for case, inputs in enumerate(cases):
        records.append({"t": "case", "case": case, "weight": float(weights[case])})
        records.extend(_export(model, inputs))
    records.extend(_state(model))
    return records


def _load(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location("model", path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    return module


def _state(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Every parameter and buffer, for a ModelNew that must register them by name."""
    for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            owner = model.get_submodule(name.rpartition(".")[0])
            leaf = name.rpartition(".")[2]
            transient = leaf in owner._non_persistent_buffers_set
            yield {
                "t": "state", "kind": kind, "name": name, "shape": list(tensor.shape),
                "dtype": _dtype(tensor.dtype), "persistent": not transient,
            }  # fmt: skip


def _export(model: torch.nn.Module, inputs: tuple[Any, ...]) -> list[dict[str, Any]]:
    with torch.no_grad():
        program = torch.export.export(model, inputs, strict=False)
        program = program.run_decompositions(_decompositions())
    signature = program.graph_signature
    for output in signature.output_specs:
        if output.kind is not OutputKind.USER_OUTPUT:
            raise Refused(
                f"the module writes to its {output.kind.name.split('_')[0].lower()} {output.target}"
            )
    return [*_inputs(model, program), *_operators(program), _outputs(program)]


def _decompositions() -> dict[Any, Any]:
    table: dict[Any, Any] = torch.export.default_decompositions()
    kept = [op for op in table if op.name().split("::")[1].split(".")[0] in KEPT]
    for op in kept:
        table.pop(op)
    return table


def _inputs(model: torch.nn.Module, program: Any) -> Iterator[dict[str, Any]]:
    meta = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    paths = iter(_leaf_paths(program.call_spec.in_spec))
    for spec in program.graph_signature.input_specs:
        if spec.kind not in KINDS:
            raise Refused(f"the module takes a {spec.kind.name.lower()} input")
        path = next(paths) if spec.kind is InputKind.USER_INPUT else None
        if isinstance(spec.arg, ConstantArgument):
            yield {"t": "fixed", "path": path, "value": repr(spec.arg.value)}
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise Refused(f"input {spec.arg.name} is neither a tensor nor a plain value")
        record = {"t": "in", "name": spec.arg.name, "kind": KINDS[spec.kind], "path": path,
                  "target": spec.target, **_tensor(meta[spec.arg.name])}  # fmt: skip
        if spec.kind is InputKind.CONSTANT_TENSOR:
            record.update(_constant(model, program, spec.target))
        yield record


def _constant(model: torch.nn.Module, program: Any, target: str) -> dict[str, Any]:
    """Where a tensor that is neither parameter nor buffer comes from: an attribute, or one number."""
    owner, _, leaf = target.rpartition(".")
    try:
        if isinstance(getattr(model.get_submodule(owner), leaf), torch.Tensor):
            return {"attribute": True}
    except AttributeError:
        pass
    tensor = program.constants.get(target)
    if tensor is None or tensor.numel() != 1 or isinstance(tensor, torch._subclasses.FakeTensor):
        raise Refused(f"forward makes a constant tensor ({target}) from Python data")
    return {"attribute": False, "value": tensor.item()}


def _leaf_paths(spec: Any) -> list[list[Any]]:
    """Path of each leaf of the flattened (args, kwargs); keyword arguments by name."""
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    paths = []
    for path, _ in leaves:
        keys = [getattr(k, "idx", getattr(k, "key", None)) for k in path]
        if None in keys:
            raise Refused("an input container is neither list, tuple nor dict")
        paths.append(keys[1:])
    return paths


def _operators(program: Any) -> Iterator[dict[str, Any]]:
    for node in program.graph.nodes:
        if node.op != "call_function" or "_assert_tensor_metadata" in str(node.target):
            continue
        name = "getitem" if "getitem" in str(node.target) else str(node.target)
        value = node.meta.get("val")
        record = {"t": "op", "name": node.name, "op": name.removeprefix("aten."),
                  "args": _encode(node.args), "kw": _encode(dict(node.kwargs))}  # fmt: skip
        if isinstance(value, torch.Tensor):
            record.update(_tensor(value))
        yield record


def _outputs(program: Any) -> dict[str, Any]:
    names: list[Any] = []
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, ConstantArgument):
            names.append({"c": spec.arg.value})
        else:
            names.append({"v": spec.arg.name})
    tree = pytree.tree_unflatten(names, program.call_spec.out_spec)
    return {"t": "out", "tree": _tree(tree)}


def _tree(tree: Any) -> Any:
    if isinstance(tree, dict) and set(tree) in ({"v"}, {"c"}) and not isinstance(tree.get("v"), dict):
        return tree
    if type(tree) is dict:
        return {"dict": [[k, _tree(v)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):  # named tuples (torch.max along a dim) become plain ones
        return {"list" if isinstance(tree, list) else "tuple": [_tree(v) for v in tree]}
    raise Refused(f"the output container {type(tree).__name__} is neither list, tuple nor dict")


def _tensor(value: torch.Tensor) -> dict[str, Any]:
    shape = [int(n) for n in value.shape]
    strides = [int(n) for n in value.stride()]
    return {"shape": shape, "dtype": _dtype(value.dtype), "strides": strides}


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encode(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"v": value.name}
    if isinstance(value, torch.dtype):
        return {"d": _dtype(value)}
    if isinstance(value, Mapping):
        dropped = ("device", "layout", "pin_memory", "memory_format")
        return {k: _encode(v) for k, v in value.items() if k not in dropped}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
