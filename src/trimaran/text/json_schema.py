"""JSON schemas as llguidance is to read them: what it would take too loosely is said exactly, or refused."""

import json
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
    """``schema`` as ``%json`` of a Lark grammar takes it: exact, and compact. Raises as ``exact_schema`` does, and for
    what is no schema."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise RequestError(f"{field} must be a JSON object", param=field)
    return json.dumps({**exact_schema(schema, field), "x-guidance": COMPACT})


def exact_schema(schema: Any, field: str) -> Any:
    """``schema``, whose ``date``, ``time`` and ``date-time`` have become patterns.

    Raises ``RequestError`` naming ``field`` for what llguidance passes over.
    """
    if isinstance(schema, list):
        return [exact_schema(each, field) for each in schema]
    if not isinstance(schema, dict):
        return schema
    exact: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            exact[key] = {name: exact_schema(each, field) for name, each in value.items()}
        else:
            exact[key] = value if key in _VALUES else exact_schema(value, field)
    if "draft-03" in str(schema.get("$schema")):  # its "disallow", "extends" and "divisibleBy"
        raise RequestError(f"{field} follows Draft 3, which is not enforced", param=field, code="unsupported_grammar")
    name = schema.get("format")
    if name == "unknown":
        raise RequestError(f"{field} has the format 'unknown'", param=field, code="unsupported_grammar")
    if isinstance(name, str) and name in _FORMATS:
        del exact["format"]
        also = exact.get("allOf")
        exact["allOf"] = [*(also if isinstance(also, list) else []), {"pattern": f"^{_FORMATS[name]}$"}]
    return exact
