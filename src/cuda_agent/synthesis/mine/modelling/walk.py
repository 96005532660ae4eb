"""The modelling files of the installed transformers, read by parsing; nothing of them is run."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cuda_agent.errors import UsageError

Definition = ast.ClassDef | ast.FunctionDef | ast.Assign
_TORCH_BASE = re.compile(r"^(torch\.)?nn\.[A-Z]\w+$")
_WRAPPER = "GradientCheckpointingLayer"


class Unfit(Exception):
    """A class cannot become a seed: one line."""


@dataclass(frozen=True)
class SourceFile:
    """One parsed file.

    Attributes:
        path: of the file.
        definitions: functions, classes and constants of its top level, by name.
        imports: the statement that a name is imported by.
    """

    path: Path
    definitions: dict[str, Definition]
    imports: dict[str, ast.Import | ast.ImportFrom]

    def imported(self, name: str) -> str:
        """Dotted path that a name is imported from; a leading ``transformers`` for relative imports."""
        statement = self.imports[name]
        if isinstance(statement, ast.Import):
            return next((a.name for a in statement.names if a.asname == name), name)
        original = next(a.name for a in statement.names if (a.asname or a.name) == name)
        if not statement.level:
            return f"{statement.module}.{original}"
        folder = self.path.parents[statement.level - 1].relative_to(package().parent)
        parts = [*folder.parts, *([statement.module] if statement.module else []), original]
        return ".".join(parts)

    def source_of(self, name: str) -> SourceFile | None:
        """The file of transformers that an imported name is defined in; ``None`` for any other."""
        dotted = self.imported(name)
        if not dotted.startswith("transformers."):
            return None
        path = package().parent.joinpath(*dotted.split(".")[:-1]).with_suffix(".py")
        return parsed(path) if path.is_file() else None


def package() -> Path:
    """Folder of the installed transformers; nothing of it is imported.

    Raises:
        UsageError: it is not installed.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        raise UsageError(
            "transformers is not installed: no seeds can be mined from its models.",
            "Install it: pip install 'cuda-agent[models]'.",
        )
    return Path(found.origin).parent


def version() -> str:
    """Of the installed transformers."""
    return importlib.metadata.version("transformers")


def modelling_files() -> list[Path]:
    """Every ``models/*/modeling_*.py``: originals before copies, older before newer.

    Raises:
        UsageError: transformers is not installed.
    """
    return sorted(package().glob("models/*/modeling_*.py"), key=_age)


def _age(path: Path) -> tuple[bool, int, str]:
    """Generated files are put together from others; the licence's head says the year."""
    with path.open(encoding="utf-8") as file:
        head = file.read(1500)
    year = re.search(r"Copyright.*?(20\d\d)", head)
    return "automatically generated" in head, int(year[1]) if year else 9999, path.name


@lru_cache(maxsize=24)
def parsed(path: Path) -> SourceFile:
    """A file's top level."""
    definitions: dict[str, Definition] = {}
    imports: dict[str, ast.Import | ast.ImportFrom] = {}
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")).body):
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                definitions[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)]):
                definitions[name] = node
            case ast.Import() | ast.ImportFrom():
                imports |= {(alias.asname or alias.name).split(".")[0]: node for alias in node.names}
            case _:
                pass
    return SourceFile(path, definitions, imports)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements, imports under a condition included."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from (s for s in ast.walk(node) if isinstance(s, ast.Import | ast.ImportFrom))
        yield node


def class_ids() -> list[str]:
    """Ids of all module classes, in order of the files: ``transformers.llama.LlamaRMSNorm``.

    Raises:
        UsageError: transformers is not installed.
    """
    found: dict[str, None] = {}
    for path in modelling_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and is_module(node) and method(node, "forward"):
                found[f"transformers.{path.stem.removeprefix('modeling_')}.{node.name}"] = None
    return list(found)


def located(id_: str) -> tuple[SourceFile, ast.ClassDef]:
    """The file and class of an id.

    Raises:
        KeyError: there is none such.
    """
    _, model, name = id_.split(".")
    for path in package().glob(f"models/*/modeling_{model}.py"):
        node = parsed(path).definitions.get(name)
        if isinstance(node, ast.ClassDef):
            return parsed(path), node
    raise KeyError(id_)


def is_module(node: ast.ClassDef) -> bool:
    """Whether a class's only base is one of ``torch.nn`` (or transformers' wrapper for checkpointing)."""
    bases = [ast.unparse(base) for base in node.bases]
    return len(bases) == 1 and (bases[0] == _WRAPPER or bool(_TORCH_BASE.match(bases[0])))


def method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A method of a class by name."""
    return next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == name), None)
