"""Find the class a target names, by reading files: nothing of the user's code runs here."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from cuda_agent.errors import TaskError, UsageError
from cuda_agent.task import REQUIRED_NAMES

# A module longer than this is imported instead of copied: nobody, person or model, reads it whole.
MAX_OWN_SOURCE_CHARS = 100_000
# A name re-exported through more files than this is not followed further.
MAX_IMPORT_HOPS = 8
_IMPORTS = (ast.Import, ast.ImportFrom)
# Names that tie a source to its place on disk or in a package.
_PLACE_NAMES = {"__file__", "__package__", "__spec__", "__path__", "__loader__"}


@dataclass(frozen=True)
class ClassSource:
    """A class found in a source file.

    Attributes:
        module: dotted name it imports under.
        name: of the class.
        path: source file.
        root: folder to put on ``sys.path`` for the import.
        code: the whole file.
        node: the class in it; ``None`` where the file imports or computes the name.
    """

    module: str
    name: str
    path: Path
    root: Path
    code: str
    node: ast.ClassDef | None

    @property
    def text(self) -> str:
        """Source of the class alone; empty where it is not in the file."""
        return (ast.get_source_segment(self.code, self.node) or "") if self.node else ""

    @property
    def search_path(self) -> tuple[str, ...]:
        """Folders that a task made of the class needs on ``sys.path``.

        Empty where the source stands alone, and for installed packages: those are found without help,
        and naming their folder would tie the task to this machine.
        """
        alone = own_source(self) is not None or "site-packages" in self.root.parts
        return () if alone else (str(self.root),)


def find_class(module: str, name: str, *, search: Sequence[str] = ()) -> ClassSource:
    """Find ``module:name``; ``module`` is a dotted name, or the path of a ``.py`` file.

    Raises:
        UsageError: no such module, no such name in it, or it is no class.
        TaskError: the source does not parse.
    """
    if module.endswith(".py"):
        path = Path(module).resolve()
        dotted, root = path.stem, path.parent
    else:
        path = _find_file(module, search)
        dotted = module
        root = path.parents[len(module.split(".")) - (path.name != "__init__.py")]
    source = _follow(dotted, name, path, search=[str(root), *search])
    if source is None:
        raise UsageError(f"{path} defines no {name}", "Check the class name after the colon.")
    return source


def own_source(source: ClassSource) -> str | None:
    """The class with what it needs of its file, as a source that stands alone; ``None`` if none can.

    Only imports, and definitions that the class reaches by name, are taken: a script's other statements
    do not run again. It does not stand alone when it imports from its own package or folder, asks where
    it lies, is very long, or uses the names a task file must define for something else.
    """
    if source.node is None:
        return None
    tree = ast.parse(source.code)
    kept = _reached(tree, source.name)
    bound = {name for node in kept for name in _bound_names(node) if not isinstance(node, _IMPORTS)}
    if bound & ({*REQUIRED_NAMES, "CASE_WEIGHTS"} - {source.name}):
        return None
    if any(isinstance(n, ast.Name) and n.id in _PLACE_NAMES for node in kept for n in ast.walk(node)):
        return None
    own = source.module.split(".")[0]
    if any(top == own or _beside(source.root, top) for node in kept for top in _imported_tops(node)):
        return None
    lines = source.code.splitlines()
    text = "".join(_statement(node, lines) for node in kept)
    return text if len(text) <= MAX_OWN_SOURCE_CHARS else None


def _reached(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Statements of the module that bind ``name``, or a name that such a statement uses, in order."""
    wanted, done, kept = [name], set[str](), set[int]()
    while wanted:
        current = wanted.pop()
        if current in done:
            continue
        done.add(current)
        for index, node in enumerate(tree.body):
            if current in _bound_names(node) and index not in kept:
                kept.add(index)
                wanted += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    # A star import may bind anything; a future import changes how the rest is read.
    always = [i for i, n in enumerate(tree.body) if isinstance(n, ast.ImportFrom) and _always(n)]
    return [node for index, node in enumerate(tree.body) if index in kept or index in always]


def _always(node: ast.ImportFrom) -> bool:
    return node.module == "__future__" or node.names[0].name == "*"


def _bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, _IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
        return set()
    if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
        inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
        inner += [n for h in getattr(node, "handlers", []) for n in h.body]
        return {name for child in inner for name in _bound_names(child)}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def _statement(node: ast.stmt, lines: Sequence[str]) -> str:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    block = "\n".join(lines[first - 1 : node.end_lineno]) + "\n"
    return f"\n\n{block}\n" if isinstance(node, ast.ClassDef | ast.FunctionDef) else block


def missing_init_arguments(node: ast.ClassDef, *, num_positional: int, keywords: Iterable[str]) -> list[str]:
    """Required constructor arguments that ``num_positional`` values and ``keywords`` leave open."""
    function = _method(node, "__init__")
    if function is None:
        return []
    given = set(keywords)
    positional = _positional(function)
    num_required = len(positional) - len(function.args.defaults)
    missing = [a for i, a in enumerate(positional) if num_positional <= i < num_required and a not in given]
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is None and argument.arg not in given:
            missing.append(argument.arg)
    return missing


def forward_arity(node: ast.ClassDef) -> tuple[list[str], int, bool] | None:
    """Arguments of ``forward``: (names, how many are required, takes ``*args``); ``None`` if unseen."""
    function = _method(node, "forward")
    if function is None:
        return None
    names = _positional(function)
    return names, len(names) - len(function.args.defaults), function.args.vararg is not None


def _follow(
    module: str, name: str, path: Path, *, search: Sequence[str], depth: int = 0
) -> ClassSource | None:
    """The definition of ``name`` in ``path`` or in what it imports the name from; ``None``: not there."""
    code = _read(path)
    tree = _parse(code, path)
    node = _definition(tree, name)
    if isinstance(node, ast.FunctionDef):
        raise UsageError(f"{name} in {path.name} is a function, not a class", "Name an nn.Module class.")
    root = path.parents[len(module.split(".")) - (path.name != "__init__.py")]
    here = ClassSource(module, name, path, root, code, node if isinstance(node, ast.ClassDef) else None)
    if here.node is not None or depth == MAX_IMPORT_HOPS:
        return here
    stars = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    for hop in [node] if isinstance(node, ast.ImportFrom) else stars:
        target = _imported_module(hop, module, package=path.name == "__init__.py")
        original = next((a.name for a in hop.names if (a.asname or a.name) == name), name)
        try:
            file = _find_file(target, search)
        except UsageError:
            continue  # a compiled module: nothing to read
        if found := _follow(target, original, file, search=search, depth=depth + 1):
            return found
    return here if node is not None else None


def _imported_module(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    """Absolute name of the module that ``node``, a statement of ``module``, imports from."""
    parts = module.split(".") if package else module.split(".")[:-1]
    base = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _find_file(module: str, search: Sequence[str]) -> Path:
    # The finders are asked level by level: importlib.util.find_spec would import the parents, and
    # importing a package runs its code.
    locations: list[str] | None = None
    spec: ModuleSpec | None = None
    done = ""
    for part in module.split("."):
        done = f"{done}.{part}" if done else part
        spec = _spec(
            done, locations if locations is not None else [*search, *sys.path], top=locations is None
        )
        if spec is None:
            raise UsageError(
                f"no module {done!r} on the Python path",
                "Run from its folder, install it, or set PYTHONPATH; or name the file: FILE.py:Class.",
            )
        locations = list(spec.submodule_search_locations or [])
    origin = spec.origin if spec else None
    if origin is None or not origin.endswith(".py"):
        raise UsageError(
            f"module {module} has no Python source ({origin or 'a folder'})", "Name a .py module."
        )
    return Path(origin).resolve()


def _spec(name: str, locations: list[str], *, top: bool) -> ModuleSpec | None:
    if spec := PathFinder.find_spec(name, locations):
        return spec
    if not top:
        return None
    # Editable installs put finders of their own on the meta path.
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, None)):
            return spec if isinstance(spec, ModuleSpec) else None
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Name a Python file.") from None


def _parse(code: str, path: Path) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        raise TaskError(f"{path}: line {error.lineno}: {error.msg}", "Correct the Python source.") from None


def _definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """The last statement at module level that binds ``name``."""
    return next((node for node in reversed(tree.body) if name in _bound_names(node)), None)


def _imported_tops(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import names its own package.
            yield (node.module or "").split(".")[0] if node.level == 0 else ""


def _beside(root: Path, top: str) -> bool:
    """Whether ``import top`` would find something of the target's own folder (or is relative)."""
    if not top:
        return True
    if top in sys.stdlib_module_names or top in dir(builtins) or "site-packages" in root.parts:
        return False
    return (root / f"{top}.py").is_file() or (root / top).is_dir()


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _positional(function: ast.FunctionDef) -> list[str]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return [a.arg for a in arguments[1:]]
