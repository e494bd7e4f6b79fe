"""Whether a JSON value is what a schema asks for: the few keywords of JSON Schema that tools are described with."""

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Knows ``type`` (one), ``enum``, ``required``, ``properties``, ``items``; properties that are not named do not
    fit, as in OpenAI's strict mode."""
    if "type" in schema:
        if not isinstance(value, _TYPES[schema["type"]]):
            return False
        if isinstance(value, bool) and schema["type"] != "boolean":  # in Python a bool is an int
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if not set(schema.get("required", ())) <= value.keys() or not value.keys() <= properties.keys():
            return False
        return all(fits(item, properties[name]) for name, item in value.items())
    if isinstance(value, list) and "items" in schema:
        return all(fits(item, schema["items"]) for item in value)
    return True
