"""Schemas made exact: what is passed over is told, what is said too loosely becomes a pattern, all else stays."""

import json
import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import RequestError
from trimaran.text.json_schema import embedded_schema, exact_schema, passed_over


def pattern(name: str) -> str:
    return exact_schema({"format": name})["allOf"][0]["pattern"]


@given(st.dates())
def test_every_date_is_one(day):
    assert re.fullmatch(pattern("date"), day.isoformat())


@given(st.from_regex(pattern("date"), fullmatch=True))
def test_what_passes_for_a_date_is_one(text):
    date.fromisoformat(text.strip())


def test_all_else_stays_as_it_is():
    schema = {
        "type": "object",
        "properties": {
            "format": {"const": {"format": "date"}},
            "date": {"enum": [{"format": "time"}], "format": "uuid"},
        },
        "allOf": [{"items": [True, {"minItems": 1}]}],
        "format": 3,
    }
    assert exact_schema(schema) == schema
    assert passed_over(schema) is None


@pytest.mark.parametrize(
    "place", [{}, {"items": None}, {"properties": {"format": None}}, {"anyOf": [True, None]}, {"$defs": {"a": None}}]
)
def test_what_is_said_too_loosely_is_found_everywhere(place):
    def within(schema):
        text = json.dumps(place).replace("null", json.dumps(schema))
        return json.loads(text) if place else schema

    assert '"format"' not in json.dumps(exact_schema(within({"format": "time"}))).replace('"format": {', "")
    assert "Draft 3" in str(passed_over(within({"$schema": "http://json-schema.org/draft-03/schema#"})))
    assert "unknown" in str(passed_over(within({"format": "unknown"})))
    assert "minProperties" in str(passed_over(within({"minProperties": 3, "required": ["a"]})))
    assert passed_over(within({"minProperties": 3, "required": ["a", "b"]})) is None


def test_an_embedded_schema_is_compact_whatever_it_says_itself():
    text = embedded_schema({"x-guidance": {"lenient": True, "whitespace_flexible": True}, "type": "string"}, "tools")
    assert json.loads(text)["x-guidance"] == {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": False,
        "lenient": False,
        "coerce_one_of": False,
    }
    assert json.loads(embedded_schema(False, "tools"))["not"] == {}
    for wrong in (3, {"format": "unknown"}):
        with pytest.raises(RequestError, match=r"^tools "):
            embedded_schema(wrong, "tools")
