"""JSON Schema's annotations: what a schema says to people, and a grammar has no use for."""

from typing import Any

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
)
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_VALUES = frozenset(("enum", "const"))


def without_annotations(schema: Any) -> Any:
    """``schema`` without them: most of the size of many tools."""
    if isinstance(schema, list):
        return [without_annotations(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in _VALUES
        else {name: without_annotations(one) for name, one in value.items()}
        if key in _BY_NAME and isinstance(value, dict)
        else without_annotations(value)
        for key, value in schema.items()
        if key not in ANNOTATIONS
    }
