"""One pass over a function: what is known is put in, what does not run at inference goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from cuda_agent.synthesis.mine.modelling.calls import INTERFACE, Calls, is_idle
from cuda_agent.synthesis.mine.modelling.names import local_names, pairs_of, torch_name
from cuda_agent.synthesis.mine.modelling.state import Again, ClassState, NeedsValue, Scope
from cuda_agent.synthesis.mine.modelling.values import (
    Known,
    SelfRef,
    evaluated,
    is_config,
    is_number,
    is_plain,
)
from cuda_agent.synthesis.mine.modelling.walk import SourceFile, Unfit, method

_SILENT = re.compile(r"^(logger\.|warnings\.|print\(|self\.post_init|deprecate)")
_PASSED_THROUGH = re.compile(r"autocast|no_grad|enable_grad|set_grad|sdpa_kernel|nullcontext|record_function")
_DECORATORS = {"staticmethod", "property"}


class FunctionPass(Calls):
    """Specialises one function.

    Args:
        scope: where it stands.
        known: values of parameters.
        removed: parameters that leave the signature.
    """

    def __init__(self, scope: Scope, known: Mapping[str, Known], removed: frozenset[str]) -> None:
        self.scope = scope
        self.build = scope.specialiser.build
        self.removed = removed
        self.env: dict[str, Known] = dict(known)
        self.hard = set(removed)
        self.alias: dict[str, str] = {}
        self.elements: dict[str, ClassState] = {}
        self.depth = 0
        self.locals: set[str] = set()
        if scope.owner is not None:
            self.env["self"] = Known(scope.owner.itself)

    def run(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """The specialised function."""
        self.locals = local_names(function)
        static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
        function.decorator_list = [d for d in function.decorator_list if ast.unparse(d) in _DECORATORS]
        if static and any(is_config(k.value) for k in self.env.values()):
            function.decorator_list = []
            function.args.args.insert(0, ast.arg("self"))
        elif static:
            self.env.pop("self", None)
        if function.args.kwarg is not None:
            self.env[function.args.kwarg.arg] = Known({})
        if function.args.vararg is not None:
            raise Unfit("takes any number of arguments")
        self._signature(function)
        function.returns = None
        function.body = self.block(function.body) or [ast.Pass()]
        return function

    def _signature(self, function: ast.FunctionDef) -> None:
        arguments = function.args
        num = len(arguments.args) - len(arguments.defaults)
        defaults: list[ast.expr | None] = [*([None] * num), *arguments.defaults]
        pairs = list(zip(arguments.args, defaults, strict=True))
        pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
        kept = [(a, d) for a, d in pairs if a.arg not in self.removed]
        kept = [(a, None if (self.scope.key, a.arg) in self.build.kept else d) for a, d in kept]
        kept.sort(key=lambda pair: pair[1] is not None)
        arguments.args = [ast.arg(a.arg) for a, _ in kept]
        arguments.defaults = [self.visit(d) for _, d in kept if d is not None]
        arguments.kwonlyargs, arguments.kw_defaults, arguments.kwarg = [], [], None

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements in order, those that go left out; nothing after a return."""
        found: list[ast.stmt] = []
        for statement in statements:
            made = self.visit(statement)
            found += made if isinstance(made, list) else [] if made is None else [made]
            if found and isinstance(found[-1], ast.Return):
                break
        return found

    def _nested(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        self.depth += 1
        try:
            return self.block(statements)
        finally:
            self.depth -= 1

    # -- values ---------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> Any:
        """A known value in place of an expression, where code can say it."""
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            known = evaluated(node, self.env)
            code = None if known is None else self._written(known, node)
            if code is not None:
                return code
        return super().visit(node)

    def _written(self, known: Known, node: ast.expr) -> ast.expr | None:
        value = known.value
        if isinstance(node, ast.Constant):
            return node
        if is_number(value) and known.soft:
            return self._argument(node)
        if known.soft or isinstance(node, ast.List | ast.Tuple | ast.Dict) or not is_plain(value):
            return None
        return ast.Constant(value) if is_number(value) else ast.parse(repr(value), mode="eval").body

    def _argument(self, node: ast.expr) -> ast.expr | None:
        """A number of the configuration as an argument of the class."""
        place = self._place(node)
        if place is None:
            return None
        if self.scope.owner is None:
            raise Unfit("a function reads the configuration")
        name = self.scope.owner.argument(*place)
        if self.scope.in_init:
            return ast.Name(name, ast.Load())
        self.scope.owner.stored.add(name)
        return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())

    def _place(self, node: ast.expr) -> tuple[Any, str] | None:
        match node:
            case ast.Attribute(value=base, attr=attr):
                found = evaluated(base, self.env)
                name = attr
            case ast.Call(func=ast.Name(id="getattr"), args=[base, ast.Constant(value=str() as name), *_]):
                found = evaluated(base, self.env)
            case _:
                return None
        if found is None or not is_config(found.value) or not hasattr(found.value, name):
            return None
        return found.value, name

    # -- names ----------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Store):
            self.forget(node.id)
            return node
        if node.id in self.locals or node.id == "self":
            return node
        return self.global_name(node)

    def global_name(self, node: ast.Name) -> ast.expr:
        """A name of the module: torch's in one spelling, transformers' brought along."""
        found = self.resolved(node.id)
        if found is not None:
            return self._definition(*found)
        if node.id in self.scope.file.imports:
            return torch_name(self.scope.file.imported(node.id), node.id)
        return node

    def _definition(self, file: SourceFile, node: Any) -> ast.expr:
        if isinstance(node, ast.FunctionDef):
            return ast.Name(self.scope.specialiser.function(file, node, {})[0], ast.Load())
        if isinstance(node, ast.ClassDef):
            raise Unfit(f"refers to the class {node.name}")
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            raise Unfit(f"needs {ast.unparse(node.targets[0])} of its module") from None
        if not is_plain(value):
            raise Unfit(f"needs {ast.unparse(node.targets[0])} of its module")
        return ast.parse(repr(value), mode="eval").body

    def resolved(self, name: str) -> tuple[SourceFile, Any] | None:
        """The definition of a module's name in transformers; ``None`` for any other."""
        file = self.scope.file
        if name in file.definitions:
            return file, file.definitions[name]
        if name in file.imports and (source := file.source_of(name)) is not None:
            original = file.imported(name).rpartition(".")[2]
            if original in source.definitions:
                return source, source.definitions[original]
        return None

    def forget(self, label: str) -> None:
        """A name is stored to: what was known of it holds no more."""
        if label in self.hard and self.depth:
            notes = self.build.defaulted if label in self.removed else self.build.unfolded
            notes.add((self.scope.key, label))
            raise Again
        self.env.pop(label, None)
        self.alias.pop(label, None)
        self.hard.discard(label)

    # -- statements -----------------------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return self.visit_Assign(ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno))

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if self._is_of_configurations(node):
            return self.block([ast.Assign(targets=[t], value=v, lineno=0) for t, v in pairs_of(node)])
        if len(node.targets) == 1:
            if isinstance(target, ast.Name):
                return self._assigned(node, target.id)
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                return self._attribute_assigned(node, target.attr)
        self.refuse_none(node.value)
        node.value = self.visit(node.value)
        node.targets = [self.visit(t) for t in node.targets]
        return node

    def _is_of_configurations(self, node: ast.Assign) -> bool:
        """``a, b = config.a, config.b``: as good as two assignments."""
        pairs = pairs_of(node)
        return len(pairs) > 1 and all(self._place(value) is not None for _, value in pairs)

    def _assigned(self, node: ast.Assign, name: str) -> Any:
        if name == INTERFACE:
            return None
        if self._is_method(node.value):
            self.alias[name] = node.value.attr  # type: ignore[attr-defined]
            return None
        known = evaluated(node.value, self.env)
        if known is not None and self._droppable(known, name):
            self.env[name] = known
            self.hard.add(name)
            return None
        node.value = self.visit(node.value)
        self.forget(name)
        self.typed(name, node.value)
        if known is not None and is_number(known.value):
            self.env[name] = Known(known.value, soft=True)
        return None if ast.unparse(node.value) == name else node

    def _droppable(self, known: Known, label: str) -> bool:
        if is_config(known.value) or isinstance(known.value, SelfRef):
            return True
        plain = known.value == 0.0 if isinstance(known.value, float) else is_plain(known.value)
        hard = not known.soft and plain and (isinstance(known.value, float) or not is_number(known.value))
        return hard and not self.depth and (self.scope.key, label) not in self.build.unfolded

    def _attribute_assigned(self, node: ast.Assign, name: str) -> Any:
        owner = self.scope.owner
        if owner is None:
            raise Unfit("a function sets an attribute")
        if not self.scope.in_init:
            return self._state_changed(owner, node, name)
        if is_idle(node.value):
            owner.idle.add(name)
            return None
        known = evaluated(node.value, self.env)
        if known is not None and self._droppable(known, f"self.{name}"):
            owner.itself.attributes[name] = known
            return None
        node.value = self.visit(node.value)
        self._typed_attribute(owner, name, node.value)
        if known is not None and is_number(known.value):
            owner.itself.attributes[name] = Known(known.value, soft=True)
        else:
            owner.itself.attributes.pop(name, None)
        return node

    def _state_changed(self, owner: ClassState, node: ast.Assign, name: str) -> ast.AST:
        if name in owner.itself.attributes and not owner.itself.attributes[name].soft:
            self.build.unfolded.add((f"{owner.name}.__init__", f"self.{name}"))
            raise Again
        owner.itself.attributes.pop(name, None)
        node.value = self.visit(node.value)
        return node

    def _typed_attribute(self, owner: ClassState, name: str, value: ast.expr) -> None:
        for call, state in owner.constructions:
            if any(part is call for part in ast.walk(value)):
                owner.parts[name] = state

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        node.value = self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.forget(node.target.id)
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        text = ast.unparse(node.value)
        if isinstance(node.value, ast.Constant) or _SILENT.match(text):
            return None
        node.value = self.visit(node.value)
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Assert(self, _node: ast.Assert) -> None:
        return None

    def visit_If(self, node: ast.If) -> Any:
        known = evaluated(node.test, self.env)
        if known is not None and (not known.soft or self.scope.in_init):
            return self.block(node.body if known.value else node.orelse)
        node.test = self.visit(node.test)
        if _only_raises(node.body):
            return self.block(node.orelse)
        node.body, node.orelse = self._nested(node.body), self._nested(node.orelse)
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        known = evaluated(node.test, self.env)
        if known is not None and (not known.soft or self.scope.in_init):
            return self.visit(node.body if known.value else node.orelse)
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Parts that are known and do not decide go."""
        stops_at = isinstance(node.op, ast.Or)
        left = []
        for value in node.values:
            known = evaluated(value, self.env)
            if known is not None and bool(known.value) is not stops_at and value is not node.values[-1]:
                continue
            left.append(self.visit(value))
            if known is not None and bool(known.value) is stops_at:
                break
        node.values = left
        return left[0] if len(left) == 1 else node

    def visit_For(self, node: ast.For) -> Any:
        self.typed_loop(node)
        node.iter = self.visit(node.iter)
        node.target = self.visit(node.target)
        node.body = self._nested(node.body) or [ast.Pass()]
        return node

    def visit_While(self, node: ast.While) -> Any:
        self.depth += 1
        node.test = self.visit(node.test)
        node.body = self.block(node.body)
        self.depth -= 1
        return node

    def visit_With(self, node: ast.With) -> Any:
        if all(_PASSED_THROUGH.search(ast.unparse(item.context_expr)) for item in node.items):
            return self.block(node.body)
        raise Unfit(f"a context: {ast.unparse(node.items[0].context_expr)[:40]}")

    def visit_Try(self, _node: ast.Try) -> Any:
        raise Unfit("a try statement")

    def visit_FunctionDef(self, _node: ast.FunctionDef) -> Any:
        raise Unfit("a function within a function")

    def visit_Import(self, _node: ast.Import) -> Any:
        raise Unfit("an import within a function")

    def visit_ImportFrom(self, _node: ast.ImportFrom) -> Any:
        raise Unfit("an import within a function")

    def visit_List(self, node: ast.List) -> Any:
        for item in node.elts:
            if isinstance(item, ast.Name) and item.id in self.removed:
                self.refuse_none(item)
        node.elts = [self.visit(e) for e in node.elts if not is_idle(e)]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.refuse_none(node.value)
        if isinstance(node.ctx, ast.Load) and self._is_method(node):
            assert self.scope.owner is not None
            self.scope.specialiser.method(self.scope.owner, node.attr, {})
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.refuse_none(node.value)
        if (activation := self.activation(node)) is not None:
            return activation
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.refuse_none(node.left)
        self.refuse_none(node.right)
        self.generic_visit(node)
        zero = isinstance(node.left, ast.Constant) and node.left.value == 0
        return node.right if zero and isinstance(node.op, ast.Add) else node

    def _is_method(self, node: ast.expr) -> bool:
        owner = self.scope.owner
        return (
            owner is not None
            and isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "self"
            and method(owner.node, node.attr) is not None
        )

    def refuse_none(self, node: ast.expr) -> None:
        """A parameter that was left out is used: it must be given.

        Raises:
            Again: noted.
            Unfit: it is no parameter.
        """
        known = evaluated(node, self.env)
        if known is None or known.value is not None:
            return
        if isinstance(node, ast.Name) and node.id in self.removed:
            raise NeedsValue(self.scope.key, node.id)
        raise Unfit(f"{ast.unparse(node)[:40]} is None")


def _only_raises(body: list[ast.stmt]) -> bool:
    return bool(body) and all(isinstance(s, ast.Raise) for s in body)
