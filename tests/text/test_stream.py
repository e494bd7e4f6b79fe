from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.messages import Token
from trimaran.text.stream import TextStream

# Token ids of the small vocabulary: bytes (most often parts of characters), merges, control and added tokens.
ids = st.lists(st.one_of(st.integers(0, 276), st.sampled_from([*"é🎉<|im".encode()])), max_size=25)
plain_ids = st.lists(st.sampled_from([*b"<|imhel>", *range(256, 268)]), max_size=25)  # no parts of characters
stops = st.lists(st.text(alphabet="<hel|im\ufffdé", min_size=1, max_size=4), max_size=3)


def run(tokenizer, ids, stop=(), min_tokens=0, cuts=(), message=False):
    """Feeds ids in pieces; returns the joined text, the tokens and offsets given, and the stream."""
    stream = TextStream(tokenizer, stop, min_tokens=min_tokens, message=message)
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    deltas = [stream.feed([Token(i) for i in ids[a:b]]) for a, b in pairwise(edges)] + [stream.finish()]
    text = "".join(delta.text for delta in deltas)
    tokens = [token.id for delta in deltas for token in delta.tokens]
    offsets = [offset for delta in deltas for offset in delta.offsets]
    return text, tokens, offsets, stream


def naive(text, stop, begin=0):
    """The text before the stop string that ends first, but not within ``text[:begin]``."""
    for end in range(begin + 1, len(text) + 1):
        ending = [len(s) for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(ending)]
    return text


@given(ids=ids, cuts=st.lists(st.integers(0, 25), max_size=5))
def test_without_stops_the_joined_text_is_the_decoded_text(small, ids, cuts):
    text, tokens, _, stream = run(small, ids, cuts=cuts)
    assert text == small.decode(ids)
    assert tokens == ids
    assert stream.count == len(ids)


@given(ids=ids, stop=stops, cuts=st.lists(st.integers(0, 25), max_size=5))
def test_stops_end_the_text_where_a_search_finds_them(small, ids, stop, cuts):
    text, _, _, stream = run(small, ids, stop, cuts=cuts)
    whole = small.decode(ids)
    assert text == naive(whole, stop)
    assert (stream.stopped_by is not None) == any(s in whole for s in stop)


@given(ids=plain_ids, stop=stops, minimum=st.integers(0, 10))
def test_stops_within_min_tokens_are_passed_over(small, ids, stop, minimum):
    text, _, _, stream = run(small, ids, stop, minimum)
    assert text == naive(small.decode(ids), stop, len(small.decode(ids[:minimum])))
    assert stream.stopped_by is None or stream.count > minimum


@given(ids=ids, stop=stops, minimum=st.integers(0, 10), cuts=st.lists(st.integers(0, 25), max_size=5))
def test_the_way_tokens_are_fed_changes_nothing(small, ids, stop, minimum, cuts):
    whole = run(small, ids, stop, minimum)
    cut = run(small, ids, stop, minimum, cuts)
    assert whole[:3] == cut[:3]
    assert (whole[3].count, whole[3].stopped_by) == (cut[3].count, cut[3].stopped_by)


@given(ids=plain_ids, stop=stops)
def test_offsets_say_where_each_tokens_text_begins(small, ids, stop):
    text, tokens, offsets, _ = run(small, ids, stop)
    assert tokens == ids[: len(tokens)]
    for at, offset in enumerate(offsets):
        assert offset == len(small.decode(ids[:at]))
        assert text[offset:].startswith(small.decode([ids[at]])[: len(text) - offset])


def test_no_half_characters(small):
    stream = TextStream(small)
    given_out = [stream.feed([Token(byte)]).text for byte in "é🎉".encode()]
    assert given_out == ["", "é", "", "", "", "🎉"]


def test_only_a_possible_stop_is_held_back(small):
    stream = TextStream(small, ["<|im"])
    assert stream.feed(_bytes("a<|")).text == "a"
    assert stream.feed(_bytes("b")).text == "<|b"
    assert stream.feed(_bytes("<|im rest")).text == ""
    assert (stream.stopped_by, stream.count) == ("<|im", 8)
    assert stream.finish().text == ""


def test_what_was_held_comes_at_the_end(small):
    stream = TextStream(small, ["<|im"])
    held = stream.feed(_bytes("a<|"))
    rest = stream.finish()
    assert (held.text, rest.text) == ("a", "<|")
    assert (held.offsets, rest.offsets) == ((0,), (1, 2))


@pytest.mark.parametrize(("minimum", "text"), [(0, "a"), (1, "a"), (2, "axbb"), (3, "axbb"), (4, "axbb")])
def test_a_stop_counts_only_after_min_tokens(small, minimum, text):
    assert run(small, [*b"axbb"], ["x"], min_tokens=minimum)[0] == text


def test_a_stop_that_ends_after_min_tokens_counts_whole(small):
    assert run(small, [*b"axxb"], ["xx"], min_tokens=2)[0] == "a"


def test_control_tokens_give_no_text_but_count(small):
    end = next(iter(small.eos_ids))
    text, tokens, offsets, stream = run(small, [ord("a"), end, ord("b")])
    assert (text, tokens, offsets, stream.count) == ("ab", [ord("a"), end, ord("b")], [0, 1, 1], 3)


def test_logprobs_travel_with_their_tokens(small):
    token = Token(ord("a"), -0.5, [(97, -0.5), (98, -1.5)])
    assert TextStream(small).feed([token]).tokens == (token,)


def _bytes(text):
    return [Token(byte) for byte in text.encode()]


def test_a_message_begins_without_the_blank_that_encoding_adds_and_a_continuation_keeps_it(blank_first):
    ids = blank_first.encode(" hi you")
    assert blank_first.decode(ids) == " hi you"
    for cuts in ([], range(len(ids))):
        assert run(blank_first, ids, cuts=cuts, message=True)[0] == " hi you"
        assert run(blank_first, ids, cuts=cuts)[0] == "  hi you"
    text, tokens, offsets, _ = run(blank_first, blank_first.encode("hi"), message=True)
    assert (text, offsets[0], len(tokens)) == ("hi", 0, len(offsets))
