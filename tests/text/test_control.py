import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.text.control import ControlToken, ControlTokens, is_marker
from trimaran.text.written import joined, literal, written_by_template

TEXTS = ["<a>", "a>b", "<|x|>", "<|x|>>", "ab<"]


def tokens(*texts, **strip):
    return ControlTokens(ControlToken(text, i, **strip) for i, text in enumerate(texts))


def test_split_gives_ids_and_the_text_between():
    assert list(tokens("<a>", "<b>").split("x<a><b>y z")) == ["x", 0, 1, "y z"]


def test_the_longest_token_wins():
    assert list(tokens("<a>", "<a>>").split("<a>><a>")) == [1, 0]


def test_no_tokens_no_split():
    assert list(tokens().split("<a>")) == ["<a>"]
    assert list(tokens().split("")) == []


def test_a_token_of_one_character_is_text():
    assert list(tokens("x").split("axb")) == ["axb"]


def test_tokens_may_eat_the_space_beside_them():
    assert list(tokens("<a>", lstrip=True).split("x  <a> y")) == ["x", 0, " y"]
    assert list(tokens("<a>", rstrip=True).split("x  <a>\n y")) == ["x  ", 0, "y"]
    assert list(tokens("<a>", rstrip=True).split("<a>  <a>")) == [0, 0]


def test_text_without_tokens_holds_none():
    assert not tokens(*TEXTS).may_begin_in("if a > b: x")
    assert not tokens().may_begin_in("<a>")


def test_a_token_begun_at_the_end_is_noticed():
    assert tokens("<|end|>").may_begin_in("x<|en")
    assert tokens("<|end|>").may_begin_in("x<")
    assert not tokens("<|end|>").may_begin_in("x<|em")


def test_tokens_that_overlap_are_all_found():
    assert tokens("<a>", "a>b").starts_in("x<a>b") == [1, 2]


def test_only_trusted_tokens_count():
    control = tokens("<a>", "a>b", lstrip=True, rstrip=True)
    assert list(control.split("<a> <a> <a>", ((3, 8),))) == ["<a>", 0, "<a>"]
    assert list(control.split("<a><a>", ((1, 6),))) == ["<a>", 0]
    assert list(control.split("<a>b", ((1, 4),))) == ["<", 1]  # what hides an untrusted token is found
    assert list(control.split("<a>", ())) == ["<a>"]
    assert list(control.split("<a>", ((0, 2), (2, 3)))) == [0]


letters = st.text(alphabet="<|>abx", max_size=12)


@given(st.lists(st.tuples(letters, st.booleans()), max_size=6))
def test_tokens_come_from_trusted_text_only(parts):
    control = tokens(*TEXTS)
    text = joined(literal(part) if trusted else part for part, trusted in parts)
    alone = joined(part if trusted else "\0" * len(part) for part, trusted in parts)
    pieces = list(control.split(text, written_by_template(text)))
    assert [p for p in pieces if isinstance(p, int)] == [p for p in control.split(alone) if isinstance(p, int)]
    assert "".join(TEXTS[p] if isinstance(p, int) else p for p in pieces) == text


@given(letters, letters)
def test_what_may_begin_no_token_completes_none(before, after):
    control = tokens("<|end|>", *TEXTS)
    if not control.may_begin_in(before) and not control.may_begin_in(after):
        assert all(isinstance(piece, str) for piece in control.split(before + after))


@pytest.mark.parametrize("text", ["<|fim_prefix|>", "<｜User｜>", "｜DSML｜", "]~b]", "]~!b[", "[e~["])
def test_tokens_that_look_like_control_tokens(text):
    assert is_marker(text)


@pytest.mark.parametrize("text", ["<think>", "</tool_call>", "\n\n", "▁▁", "[multimodal]", "/nothink", "a | b", "<h1>"])
def test_tokens_that_are_text(text):
    assert not is_marker(text)
