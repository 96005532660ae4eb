"""JSON schemas from typed functions, and arguments checked against them. Standard library only.

The subset of JSON Schema used: ``type`` (object, array, string, integer, number, boolean), ``enum``,
``properties``, ``required``, ``items``, ``additionalProperties``, ``default``, ``description``.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from cuda_agent.agent.output import writable
from cuda_agent.agent.policy import ToolSpec

_SCALARS: dict[Any, str] = {str: "string", int: "integer", bool: "boolean", float: "number"}
_ARTICLE = {"integer": "an integer", "array": "an array", "object": "an object"}
_MISSING = object()


class ArgumentError(ValueError):
    """Arguments that do not fit their schema; the text is for the model that wrote them."""


def tool_spec(name: str, function: Callable[..., Any]) -> ToolSpec:
    """Describe a function: its docstring's head, and one property for each parameter.

    Raises:
        TypeError: a parameter is not annotated, or with a type that has no schema here.
    """
    doc = inspect.getdoc(function) or ""
    head, described = _split_docstring(doc)
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in hints:
            raise TypeError(f"{name}: parameter {parameter.name} has no type")
        schema = schema_of(hints[parameter.name])
        if text := described.get(parameter.name):
            schema["description"] = text
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    return ToolSpec(name, head, _object(properties, required))


def schema_of(kind: Any) -> dict[str, Any]:
    """Schema of a type: str, int, bool, float, list, dict, TypedDict, Literal, Optional.

    Raises:
        TypeError: any other type.
    """
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if is_typeddict(kind):
        # Not __required_keys__: it misses NotRequired where annotations are strings.
        hints = get_type_hints(kind, include_extras=True)
        required = [key for key, hint in hints.items() if get_origin(hint) is not NotRequired]
        return _object({key: schema_of(hint) for key, hint in hints.items()}, required)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": _SCALARS[type(arguments[0])], "enum": list(arguments)}
    if origin is NotRequired:
        return schema_of(arguments[0])
    if origin in (Union, types.UnionType):
        rest = [a for a in arguments if a is not type(None)]
        if len(rest) == 1:
            return schema_of(rest[0])
    if kind is list or origin is list:
        return {"type": "array", **({"items": schema_of(arguments[0])} if arguments else {})}
    if kind is dict or origin is dict:
        values = {"additionalProperties": schema_of(arguments[1])} if arguments else {}
        return {"type": "object", **values}
    raise TypeError(f"no JSON schema for {kind!r}")


def check_arguments(schema: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """Arguments that fit ``schema``, plainly meant values converted ("12" to 12, "true" to True).

    Raises:
        ArgumentError: every misfit, then the arguments that would fit.
    """
    problems: list[str] = []
    checked = _convert(schema, arguments, where="", problems=problems)
    if problems:
        raise ArgumentError("; ".join(problems) + f". Arguments: {signature_text(schema)}")
    result: dict[str, Any] = checked
    return result


def signature_text(schema: Mapping[str, Any]) -> str:
    """The arguments in one line: ``command (string, required), timeout_s (number)``."""
    required = schema.get("required", ())
    parts = [
        f"{name} ({_kind_text(property_)}{', required' if name in required else ''})"
        for name, property_ in schema.get("properties", {}).items()
    ]
    return ", ".join(parts) or "none"


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Head of a Google-style docstring, and the descriptions under ``Args:``."""
    head, _, arguments = doc.partition("\nArgs:\n")
    described: dict[str, str] = {}
    name = ""
    for line in arguments.splitlines():
        if match := re.match(r" {4}(\w+): (.*)", line):
            name = match[1]
            described[name] = match[2].strip()
        elif name and line.startswith("     "):
            described[name] += " " + line.strip()
        elif line.strip():
            break
    return " ".join(head.split()), described


def _kind_text(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if schema["type"] == "array" and "items" in schema:
        return f"array of {_kind_text(schema['items'])}"
    if schema["type"] == "object" and schema.get("properties"):
        return "{" + signature_text(schema) + "}"
    return str(schema["type"])


def _convert(schema: Mapping[str, Any], value: Any, *, where: str, problems: list[str]) -> Any:
    kind = schema["type"]
    converted = _scalar(kind, value) if kind in _SCALARS.values() else _structure(kind, value)
    if converted is _MISSING:
        article = _ARTICLE.get(kind, f"a {kind}")
        problems.append(f"{where or 'the arguments'} must be {article}, not {_excerpt(value)}")
        return None
    if "enum" in schema and converted not in schema["enum"]:
        problems.append(f"{where} must be one of {_kind_text(schema)}, not {_excerpt(value)}")
    elif kind == "array" and "items" in schema:
        return [
            _convert(schema["items"], item, where=f"{where}[{number}]", problems=problems)
            for number, item in enumerate(converted)
        ]
    elif kind == "object":
        return _members(schema, converted, where=where, problems=problems)
    return converted


def _members(
    schema: Mapping[str, Any], value: Mapping[str, Any], *, where: str, problems: list[str]
) -> dict[str, Any]:
    prefix = f"{where}." if where else ""
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if value.get(name) is None]
    problems.extend(f"argument {prefix}{name} is missing" for name in missing)
    members: dict[str, Any] = {}
    for name, member in value.items():
        known = properties.get(name, schema.get("additionalProperties"))
        if not isinstance(known, Mapping):
            if known is False:
                problems.append(f"unknown argument {prefix}{name}{_did_you_mean(name, properties)}")
            members[name] = member
        elif member is not None:  # null stands for an optional argument left out
            members[name] = _convert(known, member, where=f"{prefix}{name}", problems=problems)
    return members


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _scalar(kind: str, value: Any) -> Any:
    if kind == "string":
        return value if isinstance(value, str) else _MISSING
    if kind == "boolean":
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.strip().lower(), _MISSING)
        return value if isinstance(value, bool) else _MISSING
    return _number(kind, value)


def _number(kind: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _MISSING
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return _MISSING
    if number - number != 0.0:  # NaN and infinity
        return _MISSING
    if kind == "number":
        return number
    return int(number) if number.is_integer() else _MISSING


def _structure(kind: str, value: Any) -> Any:
    wanted = list if kind == "array" else dict
    if isinstance(value, str):  # some models write a nested structure as a JSON string
        try:
            value = writable(json.loads(value))
        except json.JSONDecodeError:
            return _MISSING
    return value if isinstance(value, wanted) else _MISSING


def _excerpt(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
