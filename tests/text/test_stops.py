from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.text.stops import StopFinder

words = st.text(alphabet="aab", min_size=1, max_size=5)
texts = st.text(alphabet="aab", max_size=30)


def naive(text, stops):
    """The first place at which some stop string ends, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def find(pieces, stops):
    finder, before = StopFinder(stops), 0
    for piece in pieces:
        found = finder.feed(piece, armed=True)
        if found:
            return before + found[0], found[1]
        before += len(piece)
    return None


@given(text=texts, stops=st.lists(words, max_size=3), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_as_a_search_by_hand_however_the_text_is_cut(text, stops, cuts):
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert find(pieces, stops) == naive("".join(pieces), stops)


@given(text=texts, stops=st.lists(words, min_size=1, max_size=3))
def test_what_is_held_is_the_longest_beginning_of_a_stop(text, stops):
    finder = StopFinder(stops)
    if finder.feed(text, armed=True) is None:
        begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert finder.held == max(begun, default=0)


def test_a_stop_is_passed_over_unless_armed():
    finder = StopFinder(["abab"])
    assert finder.feed("abab", armed=False) is None
    assert finder.held == 2  # "ab" may begin another
    assert finder.feed("ab", armed=True) == (2, "abab")


@pytest.mark.parametrize("stops", [[], ["x"]])
def test_text_that_begins_no_stop_is_not_held(stops):
    finder = StopFinder(stops)
    assert finder.feed("hello", armed=True) is None
    assert finder.held == 0
