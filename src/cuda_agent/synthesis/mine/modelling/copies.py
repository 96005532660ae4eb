"""Copies: classes whose source is the same but for names and default values."""

from __future__ import annotations

import ast
import hashlib


class _Renamed(ast.NodeTransformer):
    """Names by order of appearance; those of torch, ``math`` and builtins stay."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.names: dict[str, str] = {}

    def name(self, text: str) -> str:
        """The new name of one that the source itself gives."""
        return self.names.setdefault(text, f"n{len(self.names)}") if text in self.own else text

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self.name(node.arg))

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return ast.keyword(self.name(node.arg or ""), self.visit(node.value))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Attribute(self.visit(node.value), self.name(node.attr), node.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.name(node.name)
        node.args.defaults = [ast.Constant(0) for _ in node.args.defaults]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.name(node.name)
        return self.generic_visit(node)


def fingerprint(source: str) -> str:
    """Equal for sources that differ in nothing but names and defaults of arguments."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    made = _Renamed(_own_names(tree)).visit(tree)
    return hashlib.sha256(ast.dump(made).encode()).hexdigest()[:16]


def _own_names(tree: ast.Module) -> set[str]:
    """What the source defines: classes, functions, parameters, locals, attributes of ``self``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return found - {"self", "__init__", "forward"}
