import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.text.tools.json_text import DEPTH, DIGITS, JsonError, JsonText

texts = st.text(alphabet='{}[]",:\\u0019aefltrsn.-+E \n\x01é', max_size=16)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


def read(pieces):
    """How many characters belong to the value, or what is wrong and where; once the text has ended."""
    value, at = JsonText(), 0
    for piece in pieces:
        if value.done:
            break
        try:
            at += value.feed(piece)
        except JsonError as error:
            return at + error.at, str(error)
    if not value.done:
        try:
            value.finish()
        except JsonError as error:
            return at, str(error)
    return at


def strictly(text):
    """Whether Python reads all of ``text`` as JSON by RFC 8259."""

    def refuse(word):
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(text=texts)
def test_agrees_with_python_about_what_is_json(text):
    assert (read([text.rstrip(" \n")]) == len(text.rstrip(" \n"))) == strictly(text)


@given(value=values, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_reads_whatever_is_json(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read([text]) == len(text)
    assert read(list(text)) == len(text)


@given(text=texts, cuts=st.lists(st.integers(0, 16), max_size=4))
def test_cuts_change_nothing(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read([text[begin:end] for begin, end in itertools.pairwise(edges)]) == read([text])


@pytest.mark.parametrize(
    "text", ["[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH, "1" * DIGITS, '"\\ud800"', "-0.5e+7"]
)
def test_reads_up_to_the_limits(text):
    assert read([text]) == len(text)


@pytest.mark.parametrize(
    "text",
    ["[" * (DEPTH + 1), "1" * (DIGITS + 1), '"\ud800"', "01", "NaN", "-", "1.", "{1:2}", '{"a" 1}', "[1,]", '"\n"'],
)
def test_refuses_what_is_none(text):
    assert read([text]) == read(list(text))
    assert isinstance(read([text]), tuple)
