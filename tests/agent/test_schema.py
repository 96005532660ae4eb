"""Schemas from typed functions, and arguments checked against them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import pytest

from cuda_agent.agent.schema import ArgumentError, check_arguments, schema_of, signature_text, tool_spec


class Point(TypedDict):
    x: int
    label: NotRequired[str]


def example(
    name: str,
    count: int = 3,
    *,
    mode: Literal["a", "b"] = "a",
    point: Point | None = None,
    tags: list[str] | None = None,
) -> str:
    """Do a thing.

    In two lines.

    Args:
        name: what it is
            called.
        count: how many.
    """
    return f"{name}{count}{mode}{point}{tags}"


def test_schema_of_a_function() -> None:
    spec = tool_spec("Example", example)
    assert (spec.name, spec.description) == ("Example", "Do a thing. In two lines.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "what it is called."},
            "count": {"type": "integer", "description": "how many.", "default": 3},
            "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
                "required": ["x"],
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert signature_text(spec.parameters).startswith(
        'name (string, required), count (integer), mode ("a" | "b")'
    )


def test_types_without_a_schema_are_refused() -> None:
    for kind in (set[int], int | str, bytes, object):
        with pytest.raises(TypeError):
            schema_of(kind)
    with pytest.raises(TypeError, match="has no type"):
        tool_spec("f", lambda x: x)
    assert schema_of(dict[str, float]) == {"type": "object", "additionalProperties": {"type": "number"}}
    assert schema_of(list) == {"type": "array"} and schema_of(dict) == {"type": "object"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "n"}, {"name": "n"}),
        ({"name": "n", "count": "12"}, {"name": "n", "count": 12}),
        ({"name": "n", "count": 2.0}, {"name": "n", "count": 2}),
        ({"name": "n", "point": '{"x": 1}'}, {"name": "n", "point": {"x": 1}}),
        ({"name": "n", "tags": '["a"]', "point": None}, {"name": "n", "tags": ["a"]}),
    ],
)
def test_plainly_meant_values_are_converted(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert check_arguments(tool_spec("Example", example).parameters, given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "argument name is missing"),
        ([], "the arguments must be an object"),
        ({"name": 1}, "name must be a string, not 1"),
        ({"name": "n", "count": True}, "count must be an integer, not true"),
        ({"name": "n", "count": 1.5}, "count must be an integer"),
        ({"name": "n", "count": "nan"}, "count must be an integer"),
        ({"name": "n", "mode": "c"}, 'mode must be one of "a" | "b"'),
        ({"name": "n", "point": {"x": 1, "z": 2}}, "unknown argument point.z"),
        ({"name": "n", "tags": ["a", 1]}, "tags[1] must be a string"),
        ({"nam": "n"}, "argument name is missing; unknown argument nam (did you mean name?)"),
    ],
)
def test_misfits_are_named(given: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_arguments(tool_spec("Example", example).parameters, given)
    assert words in str(caught.value) and "Arguments: name (string, required)" in str(caught.value)
