import re

from hypothesis import given
from hypothesis import strategies as st

from trimaran.text.control import ControlToken, ControlTokens

TEXTS = ["<a>", "a>b", "<|x|>", "<|x|>>", "ab<"]
MARK = "\U0010fffd"


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


def test_text_without_tokens_is_not_touched():
    assert tokens(*TEXTS).broken_up("if a > b: <x>", MARK) == "if a > b: <x>"


def test_overlapping_tokens_are_both_broken():
    assert tokens("<a>", "a>b").broken_up("<a>b", MARK) == f"<{MARK}a{MARK}>b"


def test_a_token_begun_at_the_end_is_broken():
    assert tokens("<|end|>").broken_up("x<|en", MARK) == f"x<{MARK}|en"
    assert tokens("<|end|>").broken_up("x<", MARK) == f"x<{MARK}"


letters = st.text(alphabet="<|>abx", max_size=12)


@given(st.lists(letters, max_size=6))
def test_joined_pieces_of_a_user_hold_no_token(pieces):
    control = tokens(*TEXTS)
    joined = "".join(control.broken_up(piece, MARK) for piece in pieces)
    assert re.search("|".join(map(re.escape, TEXTS)), joined) is None
    assert joined.replace(MARK, "") == "".join(pieces)


@given(letters, letters)
def test_tokens_beside_a_users_text_are_found(before, after):
    control = tokens("<|end|>", *TEXTS)
    text = control.broken_up(before, MARK) + "<|end|>" + control.broken_up(after, MARK)
    assert [piece for piece in control.split(text) if isinstance(piece, int)] == [0]
