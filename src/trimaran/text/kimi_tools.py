"""Tools as Kimi K2.5 and K2.6 were trained to read them: declarations in TypeScript.

Their template takes them as ``tools_ts_str``, which code of the vendor computes (``tool_declaration_ts.py`` in the
models' repositories). Without it the template falls back to JSON, which the models read less well.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INDENT = "  "
UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
LIMITS = {  # what a comment says of a value beside its description
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}


def typescript(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The declarations of ``tools``, given as in the OpenAI API; None where a schema has no such form."""
    try:
        functions = [tool["function"] for tool in tools if tool.get("type") == "function" and tool.get("function")]
        declared = [_function(function) for function in functions]
    except (AttributeError, KeyError, TypeError, ValueError):  # a schema that is none, or goes beyond the form
        return None
    if not declared:
        return None
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(declared) + "\n}\n"


def _function(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters") or {}
    definitions: dict[str, Any] = {}
    refers_to_itself = "#" in list(_references(parameters, definitions))
    lines = []
    if refers_to_itself:  # fields as they come, where other objects have them sorted
        lines.append(f"interface parameters {{{_lines(_fields(parameters, INDENT, in_order=True))}}}")
    for name, schema in definitions.items():
        lines += _comment(schema.get("description", ""), "")
        lines.append(f"interface {name} {_type(schema, '')}")
    lines += _comment(function.get("description") or "", "")
    given = "parameters" if refers_to_itself else _object(parameters, "")
    lines.append(f"type {function.get('name', 'function')} = (_: {given}) => any;")
    return "\n".join(lines)


def _references(schema: Any, definitions: dict[str, Any]) -> Iterator[str]:
    """Everything that ``schema`` refers to; collects ``$defs`` on the way, in the order of the text."""
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        if name != "#" and name not in definitions:
            raise ValueError(f"nothing is defined as {schema['$ref']}")
        yield name
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _references(one, definitions)
    elif "enum" not in schema and (schema.get("type") == "object" or "properties" in schema or "$defs" in schema):
        definitions |= schema.get("$defs") or {}
        yield from _references(schema.get("additionalProperties"), definitions)
        for one in schema.get("properties", {}).values():
            yield from _references(one, definitions)
    elif "enum" not in schema and schema.get("type") == "array":
        yield from _references(schema.get("items"), definitions)


def _type(schema: Any, indent: str) -> str:
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if "$ref" in schema:
        return "parameters" if schema["$ref"] == "#" else str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(one, indent) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in schema["enum"])
    kind = schema["type"] if schema else "any"
    if isinstance(kind, list):
        return " | ".join(UNION[one] for one in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return _array(schema.get("items") or {}, indent)
    return "number" if kind == "integer" else str(kind)


def _object(schema: Mapping[str, Any], indent: str) -> str:
    fields = _fields(schema, indent + INDENT)
    more = schema.get("additionalProperties")
    if more is not None:
        kind = "never" if more is False else _type(more, indent + INDENT)
        fields.append(f"{indent}{INDENT}[k: string]: {kind}")
    return f"{{{_lines(fields)}{indent}}}" if fields else "{}"


def _fields(schema: Mapping[str, Any], indent: str, *, in_order: bool = False) -> list[str]:
    properties = schema.get("properties", {})
    required = frozenset(schema.get("required", ()))
    names = list(properties) if in_order else sorted(properties, key=lambda name: (name not in required, name))
    return [_field(name, properties[name], name in required, indent) for name in names]


def _field(name: str, schema: Any, required: bool, indent: str) -> str:
    lines = _documentation(schema, indent)
    default = schema.get("default") if isinstance(schema, Mapping) else None
    if default is not None:
        written = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
        lines.append(f"{indent}// Default: {written}")
    return "\n".join([*lines, f"{indent}{name}{'' if required else '?'}: {_type(schema, indent)}"])


def _array(items: Any, indent: str) -> str:
    documentation = _documentation(items, indent + INDENT)
    if not documentation:
        return f"Array<{_type(items, indent)}>"
    inner = "\n".join([*documentation, f"{indent}{INDENT}{_type(items, indent + INDENT)}"])
    return f"Array<\n{inner}\n{indent}>"


def _documentation(schema: Any, indent: str) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    lines = _comment(schema.get("description", ""), indent)
    plain = not {"$ref", "anyOf", "enum"}.intersection(schema) and isinstance(schema.get("type"), str)
    limits = [
        f"{key}: {schema[key]}" for key in sorted(LIMITS.get(schema["type"], ()) if plain else ()) if key in schema
    ]
    return [*lines, f"{indent}// {', '.join(limits)}"] if limits else lines


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def _lines(fields: Sequence[str]) -> str:
    return "\n" + ",\n".join(fields) + "\n" if fields else ""
