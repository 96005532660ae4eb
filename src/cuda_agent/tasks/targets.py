"""TARGET in, a task in KernelBench's form out.

A target is one of

- ``path/to/task.py``: a file that defines ``Model``, ``get_inputs`` and ``get_init_inputs``;
- ``package.module:Class`` or ``path/to/file.py:Class`` with ``--inputs`` (see
  :mod:`cuda_agent.tasks.input_spec`) and, where the constructor takes arguments, ``--init JSON``: a list of
  positional arguments, or an object of keyword arguments.

The class's own file becomes the task's source where a copy of it still makes the class; otherwise the
task imports the class, and carries its source as comments, for readers. Nothing of the user's code
runs here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_agent.errors import TaskError, UsageError
from cuda_agent.task import Task, load_task
from cuda_agent.tasks.input_spec import InputCase, inputs_source, parse_inputs
from cuda_agent.tasks.module_source import (
    ClassSource,
    find_class,
    forward_arity,
    missing_init_arguments,
    own_source,
)

TASK_FACTS = "task.json"


def resolve_target(target: str, *, inputs: Sequence[str] = (), init: str | None = None) -> Task:
    """The task a target names.

    Args:
        target: see the module's docstring.
        inputs: each ``--inputs``.
        init: text of ``--init``.

    Raises:
        UsageError: no such file, module or class; a malformed option; arguments that do not fit.
        TaskError: the source does not parse or lacks a name.
    """
    module, colon, name = target.rpartition(":")
    if colon and module:
        if not name.isidentifier():
            raise UsageError(f"{name!r} in target {target!r} is no class name", "Write package.module:Class.")
        return _class_task(module, name, inputs=inputs, init=init)
    if inputs or init is not None:
        raise UsageError(
            f"{target} is a task file, which has inputs of its own",
            "Leave --inputs and --init out, or name a class: FILE.py:Class.",
        )
    return load_task_file(Path(target))


def load_task_file(path: Path) -> Task:
    """Read a task file, and ``task.json`` beside it where a run of ours wrote one.

    Raises:
        UsageError: no such file.
        TaskError: the source does not parse or lacks a name.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Name a task file or package.module:Class.")
    if not path.exists():
        raise UsageError(f"there is no file {path}", "Name a task file, or a class as package.module:Class.")
    try:
        task = load_task(path)
    except TaskError as error:
        if "defines no" in error.cause:
            raise TaskError(
                error.cause, f"{error.remedy} Or name a class: {path}:Class --inputs ..."
            ) from None
        raise
    facts = read_task_facts(path.parent)
    return replace(
        task,
        name=facts.get("name", task.name),
        data_source=facts.get("data_source", ""),
        search_path=tuple(facts.get("search_path", task.search_path)),
        ops=tuple(facts.get("ops", ())),
    )


def read_task_facts(folder: Path) -> dict[str, Any]:
    """What ``task.json`` in ``folder`` says of the task; empty where there is none."""
    try:
        facts = json.loads((folder / TASK_FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def save_task(task: Task, folder: Path) -> None:
    """Write the task's source as ``model.py``, its assets and its facts, so that it can be read back."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(task.code, encoding="utf-8")
    for name, source in task.assets.items():
        (folder / name).write_bytes(source.read_bytes())
    facts = {
        "name": task.name,
        "search_path": list(task.search_path),
        "ops": list(task.ops),
        "data_source": task.data_source,
        "hash": task.hash,
    }
    (folder / TASK_FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def class_task_source(source: ClassSource, *, args: Sequence[Any], kwargs: dict[str, Any], cases: str) -> str:
    """Source of a task whose ``Model`` is a class of the user's; ``cases`` is that of ``get_inputs``."""
    base = source.name
    if (own := own_source(source)) is not None:
        has_torch = "import torch" in own.splitlines()
        head = own.strip() + ("\n" if has_torch else "\n\n\nimport torch  # noqa: E402\n")
    else:
        comment = "".join(f"# {line}".rstrip() + "\n" for line in source.text.splitlines())
        about = "# Source of the class, to read (the import above is what runs):\n#\n" if comment else ""
        head = f"import torch\n\nfrom {source.module} import {source.name}\n\n{about}{comment}"
    first: list[Any] | dict[str, Any] = list(args)
    model = "" if base == "Model" else f"Model = {base}\n"
    if kwargs and base == "Model":
        first = kwargs
    elif kwargs:
        given = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
        model = f"class Model({base}):\n    def __init__(self):\n        super().__init__({given})\n"
        first = []
    init = f"def get_init_inputs():\n    return {first!r}\n"
    return "\n\n".join(part for part in (head, model, cases, init) if part)


def _class_task(module: str, name: str, *, inputs: Sequence[str], init: str | None) -> Task:
    source = find_class(module, name, search=[os.getcwd()])  # noqa: PTH109 (sys.path holds text)
    args, kwargs = _init_arguments(init)
    if source.node is not None:
        _check_init(source, args, kwargs)
    if not inputs:
        raise UsageError(
            f"{name}: no input shapes known{_forward_text(source)}",
            "Give --inputs with one item for each argument, such as --inputs 'f32[8,64]'.",
        )
    cases = parse_inputs(inputs)
    _check_arity(source, cases)
    code = class_task_source(source, args=args, kwargs=kwargs, cases=inputs_source(cases))
    data_source = f"{module}:{name}"
    task = Task(code=code, name=name.lower(), search_path=source.search_path, data_source=data_source)
    task.check_names()
    return task


def _init_arguments(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    if text is None:
        return [], {}
    remedy = """Write a list of arguments, --init '[64, 128]', or an object, --init '{"dim": 64}'."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--init is not JSON: {error.msg} at character {error.pos + 1}", remedy) from None
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        if bad := [key for key in value if not key.isidentifier()]:
            raise UsageError(f"--init: {bad[0]!r} is no argument name", remedy)
        return [], value
    raise UsageError(f"--init is a {type(value).__name__}, not a list or an object", remedy)


def _check_init(source: ClassSource, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    assert source.node is not None
    if missing := missing_init_arguments(source.node, num_positional=len(args), keywords=kwargs):
        raise UsageError(
            f"{source.name} needs constructor arguments: {', '.join(missing)}",
            f"""Give them with --init, such as --init '{{"{missing[0]}": 64}}'.""",
        )


def _check_arity(source: ClassSource, cases: Sequence[InputCase]) -> None:
    arity = forward_arity(source.node) if source.node is not None else None
    if arity is None:
        return
    names, num_required, variadic = arity
    num_given = len(cases[0].items)
    if num_given < num_required or (num_given > len(names) and not variadic):
        raise UsageError(
            f"--inputs has {num_given} items{_forward_text(source)}", "Give one item for each argument."
        )


def _forward_text(source: ClassSource) -> str:
    arity = forward_arity(source.node) if source.node is not None else None
    return f", {source.name}.forward takes ({', '.join(arity[0])})" if arity else ""
