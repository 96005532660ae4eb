"""``cuda-agent export``: a finished result as a small installable package of its own.

::

    PACKAGE/
      pyproject.toml, README.md
      PACKAGE/__init__.py        load(), facts of the verdict
      PACKAGE/reference.py       the reference (and its weights)
      PACKAGE/candidate/         model_new.py, kernels/, binding.cpp
      PACKAGE/_*.py              copies of cuda_agent.runtime: build, load, guard

It needs torch and a compiler, not cuda-agent: the kernels are built at first use and cached.
"""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cuda_agent.config import Device, Track
from cuda_agent.errors import UsageError
from cuda_agent.judge.build import fixed_files
from cuda_agent.result import Result
from cuda_agent.runs.loaded import checked_result
from cuda_agent.runs.run_folder import RunFolder, writing
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import format_times
from cuda_agent.task import Task
from cuda_agent.workspace.light import public_form
from cuda_agent.workspace.snapshot import freeze

# Module of ours -> its name in the package.
_COPIED = {
    "signature": "_signature",
    "runtime.candidate": "_candidate",
    "runtime.guarded": "_guarded",
    "runtime.build_extension": "_build",
}

_INIT = '''"""{title}

Verified by cuda-agent against its reference: {speed}.
Inference only; see load().
"""

from __future__ import annotations

import os
from pathlib import Path

from ._build import BuildError, build_extension
from ._candidate import NewModule, construct, load_source
from ._guarded import OptimizedModule, Verified

__all__ = ["BuildError", "OptimizedModule", "load"]

_HERE = Path(__file__).resolve().parent
_VERIFIED = Verified(
    inputs={inputs},
    device_type={device!r},
    device_name={device_name!r},
)


def load() -> OptimizedModule:
    """The module with its new kernels, in eval mode and on the CPU; built at first use.

    Load your weights with load_state_dict(), and move it with .to(). It falls back to the reference,
    with a warning, where the kernels were not verified: other shapes, dtypes, strides or devices,
    training, autocast, gradients.

    Raises:
        BuildError: a compiler is missing, or the kernels do not build here.
    """
    reference = load_source(_HERE / "reference.py", name=f"{{__name__}}.reference")
    arguments = reference.get_init_inputs()
    original = construct(reference.Model, arguments).eval()
    sources = _HERE / "candidate"
    library = build_extension(sources, _cache(), cuda={cuda}, fast_math={fast_math})
    return OptimizedModule(original, NewModule(sources / "model_new.py", library, arguments), _VERIFIED)


def _cache() -> Path:
    """$XDG_CACHE_HOME/{name}, or ~/.cache/{name}."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / {name!r}
'''

_PYPROJECT = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{dist}"
version = "1.0.0"
description = "{title}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["torch"]

[tool.setuptools.packages.find]
include = ["{name}", "{name}.*"]

[tool.setuptools.package-data]
"*" = ["*.cpp", "*.cu", "*.h", "*.cuh", "*.hpp", "*.pt", "*.json"]
"""

_README = """# {dist}

{title}. Kernels written and verified by cuda-agent.

```python
import torch
import {name}

model = {name}.load()          # builds the kernels at first use (torch and a compiler are needed)
with torch.no_grad():
    y = model(...)
```

- Verified inputs: {inputs_text}
- Device: {device_text}; contract: track {track}, precision {precision}
- Times when verified (median [10th, 90th percentile]): {speed}

Inference only. Anything that was not verified runs the reference, with a warning. `verdict.json` has all
numbers.
"""


@dataclass(frozen=True)
class _Names:
    dist: str
    module: str


def export_package(folder: Path, *, out: Path | None = None, name: str | None = None) -> Path:
    """Write the package; returns its folder.

    Args:
        folder: of a finished run.
        out: where to write; ``FOLDER/package`` when left out.
        name: import name; made from the task's name when left out.

    Raises:
        UsageError: no verdict, not verified, a name that is none, or ``out`` holds something.
    """
    run = RunFolder.open(folder)
    result = checked_result(run, allow_unverified=False)
    task = run.load_task()
    names = _names(name or f"{task.name}_kernels")
    if task.search_path and _imports_own(task):
        raise UsageError(
            f"the reference of {folder} imports its class from the caller's own package",
            "Export needs a reference that stands alone: optimise a task file.",
        )
    target = out or run.root / "package"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", "Name another --out.")
    settings = OptimizeSettings.from_dict(run.load_settings())
    files = _texts(names, task, result, settings)
    with writing(target):
        for relative, content in files.items():
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        package = target / names.module
        for asset, source in task.assets.items():
            (package / asset).write_bytes(source.read_bytes())
        public_form(freeze(run.candidate)).write(package / "candidate")
        for fixed, data in fixed_files().items():
            (package / "candidate" / fixed).write_bytes(data)
    return target


def _names(name: str) -> _Names:
    module = re.sub(r"\W", "_", name)
    if not module.isidentifier() or keyword.iskeyword(module):
        raise UsageError(f"{name!r} is no name for a package", "Give --name, such as --name my_kernels.")
    return _Names(module.replace("_", "-").strip("-").lower(), module)


def _imports_own(task: Task) -> bool:
    """Whether the reference needs a folder of its caller's to import from."""
    module = task.data_source.partition(":")[0].split(".")[0]
    return bool(module) and f"from {module}" in task.code


def _texts(names: _Names, task: Task, result: Result, settings: OptimizeSettings) -> dict[str, str]:
    cuda = settings.judge.device is Device.CUDA
    speed = f"eager {format_times(result.eager_us)}, these kernels {format_times(result.candidate_us)}"
    values = {
        "name": names.module,
        "dist": names.dist,
        "title": f"Faster kernels for {task.name}",
        "speed": speed,
        "inputs": repr(result.inputs),
        "inputs_text": "; ".join("(" + ", ".join(case) + ")" for case in result.inputs),
        "device": str(settings.judge.device),
        "device_name": result.device if cuda else None,
        "device_text": result.device,
        "cuda": cuda,
        "fast_math": cuda and settings.judge.track is Track.PAPER,
        "track": result.track,
        "precision": result.precision,
    }
    package = names.module
    files = {
        "pyproject.toml": _PYPROJECT.format(**values),
        "README.md": _README.format(**values),
        f"{package}/__init__.py": _INIT.format(**values),
        f"{package}/reference.py": task.code,
        f"{package}/verdict.json": json.dumps(json.loads(result.to_json()), indent=2) + "\n",
    }
    for module, copy in _COPIED.items():
        files[f"{package}/{copy}.py"] = _copied_source(module)
    return files


def _copied_source(module: str) -> str:
    path = resources.files("cuda_agent").joinpath(
        *module.split(".")[:-1], f"{module.rsplit('.', maxsplit=1)[-1]}.py"
    )
    text = path.read_text(encoding="utf-8")
    for original, copy in _COPIED.items():
        text = text.replace(f"from cuda_agent.{original} import", f"from .{copy} import")
    return text
