"""JSON schemas as llguidance is to read them: what it would take too loosely is said exactly, or refused."""

import json
from collections.abc import Iterator
from typing import Any

from trimaran.base.errors import RequestError

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # of a century's years, those that are leap years; and of centuries
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# RFC 3339 with its calendar, without leap seconds: days that there are not and 10:00:60 would pass otherwise.
_FORMATS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}
_VALUES = frozenset({"const", "enum", "default", "examples", "x-guidance"})  # not schemas, whatever they look like
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # schemas by name


COMPACT: dict[str, Any] = {  # what llguidance calls ``x-guidance``: its own defaults allow any white space
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "lenient": False,  # or it would pass over what cannot be enforced
    "coerce_one_of": False,
}


def embedded_schema(schema: Any, field: str) -> str:
    """``schema`` as ``%json`` of a Lark grammar takes it: exact, and compact.

    Raises ``RequestError`` naming ``field`` for what is no schema, and for what llguidance would pass over.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise RequestError(f"{field} must be a JSON object", param=field)
    if (why := passed_over(schema)) is not None:
        raise RequestError(f"{field} {why}", param=field, code="unsupported_grammar")
    return json.dumps({**exact_schema(schema), "x-guidance": COMPACT})


def passed_over(schema: Any) -> str | None:
    """What llguidance would take for nothing and does not refuse itself; None where there is no such thing."""
    for node in _nodes(schema):
        if "draft-03" in str(node.get("$schema")):  # its "disallow", "extends" and "divisibleBy"
            return "follows Draft 3, which is not enforced"
        if node.get("format") == "unknown":
            return "has the format 'unknown', which cannot be enforced"
        least, required = node.get("minProperties"), node.get("required")
        named = len(required) if isinstance(required, list) else 0
        if isinstance(least, int | float) and least > named + 1:  # one key more is new, two might be the same
            return f'uses "minProperties": {least}, which cannot be enforced where fewer than {least - 1} are required'
    return None


def format_pattern(name: Any) -> str | None:
    """A regular expression for texts of a format, where we have one."""
    return _FORMATS.get(name) if isinstance(name, str) else None


def exact_schema(schema: Any) -> Any:
    """``schema``, whose ``date``, ``time`` and ``date-time`` have become patterns."""
    if isinstance(schema, list):
        return [exact_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    exact: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            exact[key] = {name: exact_schema(each) for name, each in value.items()}
        else:
            exact[key] = value if key in _VALUES else exact_schema(value)
    name = schema.get("format")
    if isinstance(name, str) and name in _FORMATS:
        del exact["format"]
        also = exact.get("allOf")
        exact["allOf"] = [*(also if isinstance(also, list) else []), {"pattern": f"^{_FORMATS[name]}$"}]
    return exact


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects in ``schema`` that are schemas, or might be."""
    if isinstance(schema, list):
        for each in schema:
            yield from _nodes(each)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in _NAMED and isinstance(value, dict):
                yield from _nodes(list(value.values()))
            elif key not in _VALUES:
                yield from _nodes(value)
