import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.frames import Unframer, frame


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 400)))
def test_messages_survive_any_cut_of_the_stream(messages, cuts):
    stream = b"".join(map(frame, messages))
    unframer = Unframer()
    heard, place = [], 0
    for cut in [*cuts, len(stream)]:
        heard += unframer.feed(stream[place : place + cut])
        place += cut
    assert heard == messages


def test_a_length_that_no_message_has_ends_the_stream():
    with pytest.raises(ConnectionError, match="4,294,967,295 bytes"):
        Unframer().feed(b"\xff" * 5)
