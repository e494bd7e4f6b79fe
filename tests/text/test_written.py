import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from trimaran.text.written import Written, joined, literal, written_by_template


def shown(text):
    """The text with what the template wrote in capitals, if all of it was lower case."""
    characters = list(str.__str__(text))
    for begin, end in written_by_template(text):
        assert 0 <= begin < end <= len(characters)
        characters[begin:end] = "".join(characters[begin:end]).upper()
    return "".join(characters)


MIXED = literal("ab") + "cd" + literal("ef")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MIXED, "ABcdEF"),
        ("x" + MIXED + "y", "xABcdEFy"),
        (literal("a") + literal("b"), "AB"),
        (MIXED[1:5], "BcdE"),
        (MIXED[:-1], "ABcdE"),
        (MIXED[5:2], ""),
        (MIXED[0], "a"),  # a single character, or a step, forgets
        (MIXED[::2], "ace"),
        (literal(" a ").strip(), "A"),
        (literal("ab").strip("a"), "B"),
        ((" " + literal("a ")).lstrip(), "A "),
        ((literal(" a") + "b ").rstrip(), " Ab"),
        (literal("  ").strip(), ""),
        (literal(",").join(["x", literal("y"), "z"]), "x,Y,z"),
        (literal(",").join([]), ""),
        (str(MIXED), "ABcdEF"),
        (literal("ab").replace("a", "c"), "cb"),
        (literal("ab").upper().lower(), "ab"),
        (literal("{}").format("x"), "x"),
        (literal("a%s") % "x", "ax"),
        (literal("a b").split()[0], "a"),
        (Written("ab"), "ab"),
    ],
)
def test_who_wrote_what(text, expected):
    assert shown(text) == expected


def test_it_is_an_ordinary_string_to_everybody_else():
    text = literal("a</think>b")
    assert text == "a</think>b"
    assert {text: 1}["a</think>b"] == 1
    assert "x</think>y".split(literal("</think>")) == ["x", "y"]
    assert json.dumps([text]) == '["a</think>b"]'


def test_markup_escapes_what_it_meets_as_ever():
    assert literal("<") + Markup("<b>") == "<" + Markup("<b>")


@given(st.lists(st.tuples(st.text("ab ", max_size=3), st.booleans())), st.integers(-9, 9), st.integers(-9, 9))
def test_operations_agree_with_plain_strings(parts, begin, end):
    text = joined(literal(part) if mine else part for part, mine in parts)
    plain = "".join(part for part, _ in parts)
    who = "".join(("T" if mine else "u") * len(part) for part, mine in parts)
    assert text == plain
    marks = ["T" if any(b <= i < e for b, e in written_by_template(text)) else "u" for i in range(len(text))]
    assert "".join(marks) == who
    cut = text[begin:end]
    assert cut == plain[begin:end]
    assert [any(b <= i < e for b, e in written_by_template(cut)) for i in range(len(cut))] == [
        mark == "T" for mark in who[begin:end]
    ]
    for strip in ("strip", "lstrip", "rstrip"):
        assert getattr(text, strip)() == getattr(plain, strip)()
