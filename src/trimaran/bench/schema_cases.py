"""JSON schemas to try structured output with: from folders and installed packages, and drawn at random."""

import json
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trimaran.base.errors import ConfigError

Schema = dict[str, Any]
DRAFTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
_PATTERNS = (r"^[a-z]{2,8}$", r"^\d{4}-\d{2}$", "[A-Z]{3}", r"^(red|green|blue)$", r"^\+?[0-9 ]{5,12}$")
_FORMATS = ("date", "time", "date-time", "email", "ipv4", "uuid", "hostname", "duration")
_UNENFORCED: tuple[Schema, ...] = (
    {"not": {"type": "null"}},
    {"uniqueItems": True},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"contains": {"type": "integer"}},
    {"propertyNames": {"maxLength": 5}},
)


def schemas_in(source: str) -> Iterator[tuple[str, Schema]]:
    """Named schemas of a folder or an installed package: files that are one, and test suites of them.

    A suite is a list of objects that have a ``schema`` (json-schema-test-suite); the name of its draft's folder says
    which rules are meant. Raises ``ConfigError`` when there is no such folder or package.
    """
    folder = Path(source)
    if not folder.is_dir():
        package = find_spec(source)  # which is looked at, not run
        if package is None or not package.submodule_search_locations:
            raise ConfigError(f"{source} is neither a folder nor an installed package")
        folder = Path(package.submodule_search_locations[0])
    for path in sorted(folder.rglob("*.json")):
        try:
            value = json.loads(path.read_text())
        except ValueError:  # of a package, a file for something else
            continue
        name = f"{path.relative_to(folder)}"
        if isinstance(value, list):
            draft = next((DRAFTS[part] for part in path.parts if part in DRAFTS), None)
            for case in value:
                if isinstance(case, dict) and isinstance(case.get("schema"), dict):
                    schema = case["schema"] if draft is None else {"$schema": draft, **case["schema"]}
                    yield f"{name}: {case.get('description', '')}", schema
        elif isinstance(value, dict) and ("$schema" in value or "properties" in value):
            yield name, value


def drawn_schemas(count: int, seed: int) -> Iterator[tuple[str, Schema]]:
    """Schemas of every kind that can be enforced, nested up to three deep; one in ten has something that cannot."""
    rng = random.Random(seed)
    for number in range(count):
        yield f"drawn {number}", _document(rng)


def _document(rng: random.Random) -> Schema:
    properties = {f"field_{i}": _schema(rng, 2) for i in range(rng.randint(1, 5))}
    if rng.random() < 0.1:
        properties["odd"] = rng.choice(_UNENFORCED)
    schema = _object(rng, properties)
    if rng.random() < 0.15:
        schema["properties"]["next"] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
        schema["$defs"] = {
            "node": _object(rng, {"value": _schema(rng, 0), "next": {"$ref": "#/$defs/node"}}, needed=())
        }
    return schema


def _object(rng: random.Random, properties: dict[str, Any], needed: tuple[str, ...] | None = None) -> Schema:
    required = [name for name in properties if rng.random() < 0.7] if needed is None else list(needed)
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _schema(rng: random.Random, depth: int) -> Schema:
    kinds = [_string, _string, _number, _number, _choice]
    if depth > 0:
        kinds += [_array, _nested, _either]
    return rng.choice(kinds)(rng, depth)


def _string(rng: random.Random, depth: int) -> Schema:  # noqa: ARG001  # all kinds are called alike
    least = rng.randint(0, 3)
    limits = {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 20)}
    return rng.choice(
        [
            limits,
            limits,
            {"type": "string", "pattern": rng.choice(_PATTERNS)},
            {"type": "string", "format": rng.choice(_FORMATS)},
        ]
    )


def _number(rng: random.Random, depth: int) -> Schema:  # noqa: ARG001
    low = rng.randint(-1000, 1000)
    schema: Schema = {
        "type": rng.choice(["integer", "number"]),
        "minimum": low,
        "maximum": low + rng.randint(10, 10_000),
    }
    if schema["type"] == "integer" and rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([2, 5, 10])
    if rng.random() < 0.2:
        schema["exclusiveMinimum"] = schema.pop("minimum")
    return schema


def _choice(rng: random.Random, depth: int) -> Schema:  # noqa: ARG001
    values = ["a", "two words", 'with "quotes"', 3, -1.5, True, None, {"k": [1]}]
    return rng.choice(
        [
            {"enum": rng.sample(values, rng.randint(1, 4))},
            {"const": rng.choice(values)},
            {"type": rng.choice(["boolean", "null"])},
        ]
    )


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    schema: Schema = {
        "type": "array",
        "items": _schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 4),
    }
    if rng.random() < 0.2:
        schema["prefixItems"] = [_schema(rng, 0) for _ in range(rng.randint(1, 2))]
        schema["maxItems"] += 2
    return schema


def _nested(rng: random.Random, depth: int) -> Schema:
    return _object(rng, {f"inner_{i}": _schema(rng, depth - 1) for i in range(rng.randint(1, 3))})


def _either(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"anyOf": [_schema(rng, depth - 1) for _ in range(2)]}
    ways = [_object(rng, {"kind": {"const": kind}, kind: _schema(rng, 0)}, needed=("kind", kind)) for kind in "xy"]
    return {"oneOf": ways}
