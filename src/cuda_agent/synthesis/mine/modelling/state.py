"""What a class and its helpers become while they are specialised."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuda_agent.synthesis.mine.modelling.values import Known, SelfRef, setting
from cuda_agent.synthesis.mine.modelling.walk import SourceFile, Unfit

if TYPE_CHECKING:
    from cuda_agent.synthesis.mine.modelling.specialise import Specialiser

MAX_PARTS = 10


class Again(Exception):
    """A choice was wrong; it is noted in the build, and the class is specialised from the start."""


class NeedsValue(Exception):
    """A parameter that was left out is needed: function and name."""


@dataclass
class Argument:
    """A number of a configuration that a class takes as an argument of its own.

    Attributes:
        config: where it stands.
        attribute: its name there.
        value: there.
    """

    config: Any
    attribute: str
    value: int | float


@dataclass
class ClassState:
    """One class, specialised for what its constructor is given.

    Attributes:
        file, node: where it is written.
        name: in the seed.
        bound: parameters of the constructor with one known value; they are gone from it.
        itself: what is known of its attributes.
        numbers: own numeric parameters of the constructor that have a default, or ``None`` without one.
        arguments: numbers of the configuration, by the name of the new parameter.
        methods: finished methods by name.
        removed: parameters gone from each method.
        parts: classes behind attributes.
        idle: attributes that hold a dropout.
        constructions: calls that make parts; they receive the parts' arguments at the end.
        stored: arguments that methods read from ``self``.
    """

    file: SourceFile
    node: ast.ClassDef
    name: str
    bound: dict[str, Known] = field(default_factory=dict)
    itself: SelfRef = field(default_factory=SelfRef)
    numbers: dict[str, int | float | None] = field(default_factory=dict)
    arguments: dict[str, Argument] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    removed: dict[str, frozenset[str]] = field(default_factory=dict)
    parts: dict[str, ClassState] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    constructions: list[tuple[ast.Call, ClassState]] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    finished: bool = False

    def argument(self, config: Any, attribute: str) -> str:
        """The parameter for a number of a configuration; a new one where there is none yet."""
        attribute = (getattr(config, "attribute_map", None) or {}).get(attribute, attribute)
        for name, known in self.arguments.items():
            if known.config is config and known.attribute == attribute:
                return name
        kind = type(config).__name__.removesuffix("Config")
        options = [attribute, f"config_{attribute}", f"{kind.lower()}_{attribute}"]
        name = next((n for n in options if n not in self.arguments and n not in self.taken), "")
        if not name:
            raise Unfit(f"two values called {attribute}")
        self.arguments[name] = Argument(config, attribute, setting(config, attribute).value)
        return name


@dataclass
class Build:
    """Everything that one seed is made of.

    Attributes:
        kept: parameters (function, name) that must be given although they may be left out.
        defaulted: parameters (function, name) that stay with their default.
        unfolded: names (function, name) that do not stand for one value.
        classes: in order of discovery, the class itself first.
        functions: finished functions by name.
        function_keys: names of functions by what they were specialised for.
        constants: module constants by name.
    """

    kept: set[tuple[str, str]] = field(default_factory=set)
    defaulted: set[tuple[str, str]] = field(default_factory=set)
    unfolded: set[tuple[str, str]] = field(default_factory=set)
    classes: list[ClassState] = field(default_factory=list)
    class_keys: dict[str, ClassState] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | None] = field(default_factory=dict)
    function_keys: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    constants: dict[str, ast.stmt] = field(default_factory=dict)

    def again(self) -> Build:
        """An empty build with the choices noted so far."""
        return Build(self.kept, self.defaulted, self.unfolded)

    def free_name(self, name: str) -> str:
        """A name for a class or function that nothing else has."""
        taken = {state.name for state in self.classes} | self.functions.keys() | self.constants.keys()
        if len(taken) > MAX_PARTS:
            raise Unfit("more parts than an operator has")
        number = 2
        free = name
        while free in taken:
            free, number = f"{name}{number}", number + 1
        return free


@dataclass
class Scope:
    """Where a function stands.

    Attributes:
        specialiser: makes helpers.
        file: for names.
        key: of the function in the build's notes.
        owner: its class; ``None`` for a function of the module.
        in_init: it is the constructor.
    """

    specialiser: Specialiser
    file: SourceFile
    key: str
    owner: ClassState | None
    in_init: bool
