"""Tools whose declarations take every turn of ``kimi_tools.py``."""

from typing import Any

from .template_families import TOOLS


def tool(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


TEXT = {"type": "string"}
CASES: dict[str, list[dict[str, Any]]] = {
    "usual": TOOLS,
    "nothing": [],
    "no function": [{"type": "function"}, {"type": "_plugin", "function": {"name": "f"}}],
    "no parameters": [{"type": "function", "function": {"name": "f"}}, tool("g", {}, description="Two\n\nlines")],
    "scalars": [
        tool(
            "f",
            fields(
                "z",
                "b",
                b={"type": "boolean", "default": True},
                z={"type": "string", "pattern": "^a+$", "minLength": 1, "maxLength": 3, "description": "one\ntwo"},
                a={"type": "number", "minimum": 0.5, "maximum": 2, "default": 1.5},
                c={"type": "integer", "minimum": 1, "default": 0},
                d={"type": "null"},
                e={"type": "string", "default": 'é "x"'},
                f={},
                g=True,
                h=False,
            ),
            description="Scalars",
        )
    ],
    "enums and unions": [
        tool(
            "f",
            fields(
                a={"type": "string", "enum": ["x", "y"], "description": "choose"},
                b={"enum": [1, 2.5, None, True]},
                c={"type": ["string", "null"]},
                d={"anyOf": [TEXT, {"type": "array", "items": {"type": "integer"}}, fields(x=TEXT)]},
                e={"type": ["array", "object", "integer"], "maximum": 3},
            ),
        )
    ],
    "arrays": [
        tool(
            "f",
            fields(
                a={"type": "array"},
                b={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2},
                c={"type": "array", "items": {"type": "string", "description": "each"}},
                d={"type": "array", "items": {"type": "array", "items": fields("k", k={"type": "integer"})}},
                e={"type": "array", "items": {"type": "array", "items": {"type": "number", "minimum": 0}}},
                f={"type": "array", "items": True},
            ),
        )
    ],
    "objects": [
        tool(
            "f",
            fields(
                "inner",
                inner={**fields("y", y=TEXT, x={"type": "integer"}), "description": "nested"},
                free={"type": "object", "additionalProperties": True},
                closed={**fields(x=TEXT), "additionalProperties": False},
                typed={"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
                empty={"type": "object"},
                default={"type": "object", "default": {"a": [1, None]}},
            ),
        ),
        tool("g", {**fields(x=TEXT), "additionalProperties": False}),
    ],
    "definitions": [
        tool(
            "f",
            {
                **fields(
                    "at",
                    at={"$ref": "#/$defs/Point", "description": "where"},
                    all={"type": "array", "items": {"$ref": "#/$defs/Point"}},
                ),
                "$defs": {
                    "Point": {
                        **fields("x", x={"type": "number"}, next={"$ref": "#/$defs/Other"}),
                        "description": "A point",
                    },
                    "Other": {"type": "string", "enum": ["a"]},
                },
            },
        )
    ],
    "refers to itself": [tool("f", fields("value", next={"$ref": "#"}, value=TEXT), description="A list")],
    "unknown reference": [tool("f", fields(x={"$ref": "#/$defs/Nobody"}))],
    "no schema": [tool("f", fields(x={"description": "what"}))],
}
