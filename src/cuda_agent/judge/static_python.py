"""Static scan of Python sources (see cuda_agent.judge.static)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from cuda_agent.judge.finding import Finding, Severity
from cuda_agent.judge.static_rules import BREAKING_ATTRIBUTES, HARMLESS, NAME_RULES
from cuda_agent.result import ViolationKind

_OWN_MODULES = frozenset(["torch", "cuda_extension"])
_WRITERS = frozenset(["setattr", "delattr"])
_DUNDER_WRITERS = frozenset(["__setattr__", "__delattr__"])
_MAPPING_WRITERS = frozenset(
    ["update", "pop", "popitem", "clear", "setdefault", "__setitem__", "__delitem__"]
)
_CODE_ATTRIBUTES = frozenset(
    ["__code__", "__globals__", "__closure__", "__class__", "__defaults__", "__bases__"]
)
_SYS_IMPORT = frozenset(["sys.modules", "sys.meta_path", "sys.path_hooks", "sys.path_importer_cache"])
_ALLOCATING = re.compile(
    r"(empty|zeros|full|ones)(_like|_strided|_permuted)?|[A-Z]\w*|device|dtype|is_\w+|no_grad|inference_mode"
    r"|as_strided|cuda|finfo|iinfo|typename"
)
_COMPUTE_PREFIXES = (
    "torch.nn.functional.",
    "torch.linalg.",
    "torch.special.",
    "torch.fft.",
    "torch.ops.aten.",
)


def scan_python(path: str, text: str) -> list[Finding]:
    """Findings in one Python source; none when it does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    scan = _Scan(path, _aliases(tree))
    scan.visit(tree)
    scan.findings += _forward_notes(path, tree, scan)
    return list(dict.fromkeys(scan.findings))


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Local names of modules and of what is imported from them, and names simply bound to those."""
    names: dict[str, str] = {"__builtins__": "builtins"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                root = item.name.partition(".")[0]
                names[item.asname or root] = item.name if item.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                names[item.asname or item.name] = f"{node.module}.{item.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            bound = _dotted(node.value, names)
            if bound and node.targets[0].id not in names:
                names[node.targets[0].id] = bound
    return names


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """Dotted name of an expression that leads to an imported module's attribute; empty otherwise."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, aliases)
        if node.attr == "__dict__":
            return base
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Subscript):
        name = _constant(node.slice)
        return name if name and _dotted(node.value, aliases) == "sys.modules" else ""
    if isinstance(node, ast.Call):
        return _dotted_call(node, aliases)
    return ""


def _dotted_call(node: ast.Call, aliases: dict[str, str]) -> str:
    function = node.func.id if isinstance(node.func, ast.Name) else _dotted(node.func, aliases)
    first = node.args[0] if node.args else None
    if first is None:
        return ""
    if function in ("__import__", "importlib.import_module", "import_module"):
        return _constant(first)
    if function == "vars":
        return _dotted(first, aliases)
    if function == "getattr" and len(node.args) > 1:
        base, name = _dotted(first, aliases), _constant(node.args[1])
        return f"{base}.{name}" if base and name else ""
    return ""


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


class _Scan(ast.NodeVisitor):
    """One pass over a module."""

    def __init__(self, path: str, aliases: dict[str, str]) -> None:
        self.path = path
        self.aliases = aliases
        self.findings: list[Finding] = []

    def dotted(self, node: ast.expr) -> str:
        """See :func:`_dotted`."""
        return _dotted(node, self.aliases)

    def add(self, kind: ViolationKind, severity: Severity, node: ast.AST, text: str) -> None:
        """Record a finding at a node's line."""
        self.findings.append(Finding(kind, severity, f"{self.path}:{getattr(node, 'lineno', 0)}: {text}"))

    # -- imports

    def visit_Import(self, node: ast.Import) -> None:
        """Each module named."""
        for item in node.names:
            self._imported(node, item.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """The module and each name taken from it."""
        for item in node.names:
            self._imported(node, f"{node.module}.{item.name}" if node.module else item.name)

    def _imported(self, node: ast.AST, name: str) -> None:
        if self._ruled(node, name, "imports"):
            return
        root = name.partition(".")[0]
        if root not in _OWN_MODULES and root not in sys.stdlib_module_names:
            text = f"imports {root}, which is neither PyTorch nor the standard library"
            self.add(ViolationKind.FORBIDDEN_IMPORT, Severity.NOTE, node, text)

    def _ruled(self, node: ast.AST, name: str, verb: str) -> bool:
        if HARMLESS.match(name):
            return True
        for pattern, kind, severity, why in NAME_RULES:
            if pattern.match(name):
                self.add(kind, severity, node, f"{verb} {name}{why and f' ({why})'}")
                return True
        return False

    # -- names used and written

    def visit_Name(self, node: ast.Name) -> None:
        """A name bound to something imported."""
        if isinstance(node.ctx, ast.Load) and "." in self.aliases.get(node.id, ""):
            self._ruled(node, self.aliases[node.id], "uses")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Attributes read, written or deleted."""
        if not isinstance(node.ctx, ast.Load):
            if self._written(node):
                return
        elif node.attr in BREAKING_ATTRIBUTES:
            kind, why = BREAKING_ATTRIBUTES[node.attr]
            self.add(kind, Severity.VIOLATION, node, f"uses .{node.attr} ({why})")
        elif (name := self.dotted(node)) and self._ruled(node, name, "uses"):
            return
        self.generic_visit(node)

    def _written(self, node: ast.Attribute) -> bool:
        owner = self.dotted(node.value)
        if node.attr in _CODE_ATTRIBUTES:
            self.add(ViolationKind.TAMPERING, Severity.VIOLATION, node, f"rebinds {node.attr}")
        elif owner:
            self._rebinds(node, owner, f"{owner}.{node.attr}")
        return bool(owner)

    def _rebinds(self, node: ast.AST, owner: str, name: str) -> None:
        if owner.startswith("torch.backends"):
            self.add(ViolationKind.PRECISION, Severity.NOTE, node, f"sets {name}")
        elif owner == "sys" and name not in _SYS_IMPORT:
            self.add(ViolationKind.TAMPERING, Severity.NOTE, node, f"sets {name}")
        else:
            self.add(ViolationKind.TAMPERING, Severity.VIOLATION, node, f"rebinds {name}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Items written into a module's namespace."""
        if not isinstance(node.ctx, ast.Load):
            name = self._namespace(node.value)
            if name:
                self.add(ViolationKind.TAMPERING, Severity.VIOLATION, node, f"writes into {name}")
        self.generic_visit(node)

    def _namespace(self, node: ast.expr) -> str:
        """The module whose names a mapping holds (``sys.modules``, ``torch.__dict__``, ``vars(torch)``)."""
        name = self.dotted(node)
        if name in _SYS_IMPORT or name == "builtins":
            return name
        if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__globals__"):
            return name or ("__globals__" if node.attr == "__globals__" else "")
        called_vars = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"
        )
        return name if called_vars else ""

    # -- calls

    def visit_Call(self, node: ast.Call) -> None:
        """Calls that write names or import."""
        function = node.func
        if isinstance(function, ast.Name):
            self._named_call(node, function.id)
        elif isinstance(function, ast.Attribute):
            self._method_call(node, function)
        name = _dotted_call(node, self.aliases)
        if name:
            self._ruled(node, name, "reaches")
        self.generic_visit(node)

    def _named_call(self, node: ast.Call, function: str) -> None:
        owner = self.dotted(node.args[0]) if node.args else ""
        if function in _WRITERS and owner:
            name = _constant(node.args[1]) if len(node.args) > 1 else ""
            self._rebinds(node, owner, f"{owner}.{name or '...'}")
        elif function in ("exec", "eval"):
            self.add(ViolationKind.TAMPERING, Severity.NOTE, node, f"{function}() of a string")
        elif function in ("__import__", "import_module") and not _constant(
            node.args[0] if node.args else node
        ):
            self.add(ViolationKind.FORBIDDEN_IMPORT, Severity.NOTE, node, "imports a name made at run time")

    def _method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        owner = self.dotted(function.value)
        if function.attr in _DUNDER_WRITERS:
            target = owner or (self.dotted(node.args[0]) if node.args else "")
            if target:
                self._rebinds(node, target, f"{target} by {function.attr}")
        elif function.attr in _MAPPING_WRITERS and (name := self._namespace(function.value)):
            self.add(ViolationKind.TAMPERING, Severity.VIOLATION, node, f"writes into {name}")

    # -- classes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A tensor subclass may compute when it is compared."""
        for base in node.bases:
            if self.dotted(base) in ("torch.Tensor", "torch._tensor.Tensor"):
                self.add(ViolationKind.TAMPERING, Severity.VIOLATION, node, "subclasses torch.Tensor")
        self.generic_visit(node)


# --- what forward names


def _forward_notes(path: str, tree: ast.Module, scan: _Scan) -> Iterator[Finding]:
    """Notes on code that forward reaches: operators named, ``try``, data handed to other libraries."""
    operators: dict[str, None] = {}
    for function in _reached(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (name := _compute_name(scan.dotted(node.func))):
                operators[name] = None
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                operators["@"] = None
            elif isinstance(node, ast.Try):
                text = f"{path}:{node.lineno}: try in code that forward reaches"
                yield Finding(ViolationKind.TORCH_COMPUTE, Severity.NOTE, text)
            elif isinstance(node, ast.Attribute) and node.attr in (
                "numpy",
                "__array__",
                "__array_interface__",
            ):
                text = (
                    f"{path}:{node.lineno}: forward reaches .{node.attr}, which hands data to another library"
                )
                yield Finding(ViolationKind.FORBIDDEN_LIBRARY, Severity.VIOLATION, text)
    if operators:
        text = f"{path}: forward names PyTorch operators: {', '.join(operators)}"
        yield Finding(ViolationKind.TORCH_COMPUTE, Severity.NOTE, text)


def _compute_name(name: str) -> str:
    if name.startswith(_COMPUTE_PREFIXES):
        return name
    head, _, tail = name.partition(".")
    is_function = head == "torch" and tail and "." not in tail and tail[0].islower()
    return name if is_function and not _ALLOCATING.fullmatch(tail) else ""


def _reached(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions that forward calls, by simple name, itself included; not ``__init__`` or ``prepare``."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "prepare"):
            functions.setdefault(node.name, []).append(node)
    reached: dict[str, None] = {}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in functions:
            continue
        reached[name] = None
        for function in functions[name]:
            waiting += [_simple(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    return [function for name in reached for function in functions[name]]


def _simple(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
