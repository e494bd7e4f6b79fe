"""What a tool's schema says of an argument that a model writes without quotes: is it a string, or JSON?"""

from collections.abc import Mapping
from typing import Any

from trimaran.text.tools.json_text import JsonError, JsonText
from trimaran.text.tools.reader import SPACE

TYPES = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
DEPTH = 16  # of references and unions that are followed


def argument_types(parameters: Mapping[str, Any], name: str) -> frozenset[str]:
    """The JSON types that ``parameters``, a JSON Schema of an object, lets the argument ``name`` have."""
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return _types(schema, parameters, DEPTH)


def json_value(text: str, types: frozenset[str]) -> str | None:
    """A value that may be JSON of one of ``types``, without white space around it; None where it is not.

    Where strings are allowed too, JSON of another type is not meant as such; where they are not, any JSON is.
    """
    bare = text.strip(SPACE)
    kind = json_type(bare)
    if kind is None or ("string" in types and (kind == "string" or not _fits(kind, types))):
        return None
    return bare


def resolved(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` with what it refers to in ``root`` in its place."""
    for _ in range(DEPTH):
        if not isinstance(found := _referred(schema.get("$ref"), root), dict):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def json_type(text: str) -> str | None:
    """The type of a JSON text; None where it is none."""
    value = JsonText()
    try:
        size = value.feed(text)
        if not value.done:
            value.finish()
    except JsonError:
        return None
    if size != len(text) or not text or text[0] in SPACE:
        return None
    first = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}.get(text[0])
    return first or ("number" if any(mark in text for mark in ".eE") else "integer")


def _fits(kind: str, types: frozenset[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not depth:
        return TYPES
    found = TYPES
    if (reference := schema.get("$ref")) is not None:
        found &= _types(_referred(reference, root), root, depth - 1)
    declared = schema.get("type")
    if declared is not None:
        kinds = declared if isinstance(declared, list) else [declared]
        found &= frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(values := schema.get("enum"), list):
        found &= frozenset().union(*map(_types_of, values))
    if "const" in schema:
        found &= _types_of(schema["const"])
    for union in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(union), list):
            found &= frozenset().union(*(_types(branch, root, depth - 1) for branch in branches))
    if isinstance(branches := schema.get("allOf"), list):
        for branch in branches:
            found &= _types(branch, root, depth - 1)
    return found


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """What ``#/a/b`` leads to in ``root``; None where it leads nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for step in filter(None, reference[1:].split("/")):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


def _types_of(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    for kind, names in _NAMES:
        if isinstance(value, kind):
            return frozenset(names)
    return frozenset({"object"})


_NAMES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (str, ("string",)),
    (list, ("array",)),
)
