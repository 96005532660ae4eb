"""A class specialised to its default configuration: numbers become arguments, all else is decided."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping
from typing import Any

from cuda_agent.synthesis.mine.modelling.function import FunctionPass
from cuda_agent.synthesis.mine.modelling.names import LAYER, pairs_of, parameters
from cuda_agent.synthesis.mine.modelling.state import Again, Build, ClassState, NeedsValue, Scope
from cuda_agent.synthesis.mine.modelling.values import Given, Known, is_config, is_number
from cuda_agent.synthesis.mine.modelling.walk import SourceFile, Unfit, method

MAX_TRIES = 14
_REPORTS = re.compile(r"output_(attentions|hidden_states)$|use_cache$|return_dict$")
_WORDS = re.compile(r"act|activation")
_SWITCH = re.compile(r"^(bias|is_|use_|has_|do_|with_|qkv_bias|norm_topk)")


def specialised(file: SourceFile, node: ast.ClassDef, config: Any) -> Build:
    """A class and all that it needs, free of configurations.

    Args:
        file, node: the class.
        config: what its constructor is given as configuration; ``None`` where it takes none.

    Raises:
        Unfit: it cannot be; one line says why.
    """
    build = Build()
    forward = method(node, "forward")
    if forward is not None and {"input_ids", "inputs_embeds"} <= {a.arg for a, _ in parameters(forward)}:
        build.kept.add((f"{node.name}.forward", "input_ids"))
    for _ in range(MAX_TRIES):
        try:
            state = Specialiser(build).top(file, node, config)
        except NeedsValue as need:
            build.kept.add(need.args)
            build = build.again()
            continue
        except Again:
            build = build.again()
            continue
        finish(build, state)
        return build
    raise Unfit("no single way to call it was found")


class Specialiser:
    """Specialises classes and functions into a build."""

    def __init__(self, build: Build) -> None:
        self.build = build

    # -- classes --------------------------------------------------------------------------------

    def top(self, file: SourceFile, node: ast.ClassDef, config: Any) -> ClassState:
        """The class that the seed is about."""
        init = method(node, "__init__")
        bound: dict[str, Known] = {}
        numbers: dict[str, int | float | None] = {}
        for argument, default in parameters(init) if init is not None else []:
            value = _own(argument, default, config)
            if isinstance(value, Known) and not value.soft:
                bound[argument.arg] = value
            else:
                numbers[argument.arg] = value.value if isinstance(value, Known) else None
        state = self.new_class(file, node, bound)
        state.numbers = numbers
        self.method(state, "__init__", {n: Known(v, soft=True) for n, v in numbers.items() if v is not None})
        self.method(state, "forward", {**self.given(state), **self.defaults(state, "forward")})
        for other in list(self.build.classes):
            self.rest(other)
        return state

    def given(self, state: ClassState) -> dict[str, Known]:
        """Parameters of forward that the seed's inputs are: never None."""
        forward = method(state.node, "forward")
        pairs = parameters(forward) if forward is not None else []
        key = f"{state.name}.forward"
        needed = [a.arg for a, d in pairs if d is None or (key, a.arg) in self.build.kept]
        return {name: Known(Given(), soft=True) for name in needed}

    def rest(self, state: ClassState) -> None:
        """Finish a part whose forward nothing calls by name."""
        if "forward" not in state.methods and method(state.node, "forward") is not None:
            self.method(state, "forward", self.defaults(state, "forward"))

    def defaults(self, state: ClassState, name: str) -> dict[str, Known]:
        """Parameters of a method that stay at their default."""
        function = method(state.node, name)
        assert function is not None
        key = f"{state.name}.{name}"
        found = {}
        for argument, default in parameters(function):
            if isinstance(default, ast.Constant) and (key, argument.arg) not in self.build.kept:
                found[argument.arg] = Known(default.value)
            elif default is None and _REPORTS.match(argument.arg):
                found[argument.arg] = Known(False)
        return found

    def new_class(self, file: SourceFile, node: ast.ClassDef, bound: Mapping[str, Known]) -> ClassState:
        """A class under a free name; its methods are still to do."""
        state = ClassState(file, node, self.build.free_name(node.name), dict(bound))
        self.build.classes.append(state)
        init = method(node, "__init__")
        if init is not None:
            state.taken = {a.arg for a, _ in parameters(init) if a.arg not in bound} | _locals(init)
        return state

    def part(
        self, file: SourceFile, node: ast.ClassDef, bound: Mapping[str, Known], soft: Mapping[str, Known]
    ) -> ClassState:
        """A helper class; one for each set of known arguments."""
        key = f"{file.path} {node.name} {_key(bound)}"
        if key not in self.build.class_keys:
            state = self.new_class(file, node, bound)
            self.build.class_keys[key] = state
            if method(node, "__init__") is not None:
                self.method(state, "__init__", soft)
        return self.build.class_keys[key]

    # -- functions ------------------------------------------------------------------------------

    def method(self, state: ClassState, name: str, known: Mapping[str, Known]) -> None:
        """Specialise a method once; known values that are hard leave its signature."""
        function = method(state.node, name)
        if function is None:
            raise Unfit(f"no method {name} of its own")
        known = state.bound if name == "__init__" and not known else {**known}
        if name == "__init__":
            known = {**known, **state.bound}
        key = f"{state.name}.{name}"
        removed = self._removed(key, known)
        if name in state.removed:
            if differing := state.removed[name] ^ removed:
                self._keep(key, differing, known)
            return
        state.removed[name] = removed
        scope = Scope(self, state.file, key, state, in_init=name == "__init__")
        state.methods[name] = FunctionPass(scope, known, removed).run(copy.deepcopy(function))

    def function(
        self, file: SourceFile, node: ast.FunctionDef, known: Mapping[str, Known]
    ) -> tuple[str, Any]:
        """Specialise a function of a module; its name in the seed and the parameters that are gone."""
        removed = self._removed(node.name, known)
        key = f"{file.path} {node.name} {_key({n: v for n, v in known.items() if n in removed})}"
        if key not in self.build.function_keys:
            name = self.build.free_name(node.name)
            self.build.functions[name] = None
            self.build.function_keys[key] = (name, removed)
            scope = Scope(self, file, node.name, None, in_init=False)
            made = FunctionPass(scope, known, removed).run(copy.deepcopy(node))
            made.name = name
            self.build.functions[name] = made
        return self.build.function_keys[key]

    def _keep(self, key: str, names: frozenset[str], known: Mapping[str, Known]) -> None:
        """A method is called in two ways: what differs is passed."""
        if any(is_config(known[n].value) for n in names if n in known):
            raise Unfit("a method is called with two configurations")
        self.build.defaulted |= {(key, n) for n in names}
        raise Again

    def _removed(self, key: str, known: Mapping[str, Known]) -> frozenset[str]:
        return frozenset(
            n
            for n, value in known.items()
            if not value.soft
            and (is_config(value.value) or _is_constant(value.value))
            and (key, n) not in self.build.defaulted
        )


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, bool | str | int | float | list | tuple | dict)


def _own(argument: ast.arg, default: ast.expr | None, config: Any) -> Known | None:
    """What a constructor's own parameter is taken to be; ``None``: a number without a default."""
    name = argument.arg
    annotation = ast.unparse(argument.annotation) if argument.annotation is not None else ""
    if "config" in name.lower() or annotation.endswith("Config"):
        if config is None and default is None:
            raise Unfit("no configuration fits it")
        return Known(config)
    if LAYER.match(name):
        return Known(0)
    if isinstance(default, ast.Constant):
        return Known(default.value, soft=is_number(default.value))
    if default is not None:
        raise Unfit(f"the default of {name} is no plain value")
    return _guessed(name, annotation)


def _guessed(name: str, annotation: str) -> Known | None:
    """Switches are off, activations GELU; numbers are searched for."""
    if annotation == "bool" or _SWITCH.match(name):
        return Known(False)
    if (annotation in ("", "str") and _WORDS.search(name)) or annotation == "str":
        return Known("gelu")
    if annotation not in ("", "int", "float"):
        raise Unfit(f"its constructor needs a {annotation}")
    return None


def _locals(function: ast.FunctionDef) -> set[str]:
    """Local names of a constructor, ``x = config.x`` aside."""
    found: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in pairs_of(node):
                if isinstance(target, ast.Name):
                    name = target.id
                    is_read = re.fullmatch(rf"(self\.)?\w*config\.{name}", ast.unparse(value))
                    (read if is_read else found).add(name)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found - read


def _key(bound: Mapping[str, Known]) -> str:
    return " ".join(
        f"{name}={id(v.value) if is_config(v.value) else repr(v.value)}" for name, v in sorted(bound.items())
    )


# -- the end ------------------------------------------------------------------------------------


def finish(build: Build, state: ClassState) -> None:
    """Give every construction the arguments of what it makes, parts first, and write the signatures."""
    if state.finished:
        return
    state.finished = True
    for call, part in state.constructions:
        finish(build, part)
        for name, argument in part.arguments.items():
            own = state.argument(argument.config, argument.attribute)
            call.keywords.append(ast.keyword(name, ast.Name(own, ast.Load())))
    if not state.arguments:
        return
    init = state.methods.get("__init__")
    if init is None:
        raise Unfit("a class without a constructor reads the configuration")
    _add_parameters(init, list(state.arguments))
    at = 1 + next((i for i, s in enumerate(init.body) if "super()" in ast.unparse(s)), -1)
    present = {ast.unparse(s) for s in ast.walk(init) if isinstance(s, ast.Assign)}
    lines = [f"self.{n} = {n}" for n in sorted(state.stored)]
    init.body[at:at] = [ast.parse(line).body[0] for line in lines if line not in present]


def _add_parameters(init: ast.FunctionDef, names: list[str]) -> None:
    """New parameters, given by keyword."""
    init.args.kwonlyargs += [ast.arg(name) for name in names]
    init.args.kw_defaults += [None] * len(names)
