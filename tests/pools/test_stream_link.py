"""What links do about a peer that has the key and misbehaves all the same, and about memory that it may still write."""

import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import TransferError
from trimaran.pools import stream_link
from trimaran.pools.carriage import SLOTS, own_slots
from trimaran.pools.envelope import Envelope, Freed
from trimaran.pools.records import Records
from trimaran.pools.stream import Stream
from trimaran.pools.stream_link import Met, StreamLink
from trimaran.pools.transfer import CAUSES, Abort, PageFrame, Taken

from .links import wait_for
from .transfers import EPOCH, hello

pytestmark = pytest.mark.usefixtures("nothing_left")

KEYS = b"a" * 32, b"b" * 32
SIZE = 1024
FRAME = PageFrame("t", EPOCH, 0, 0, 0, 1, 0)


class Memory:
    """The receiver's, which the sender writes to by itself."""

    one_sided = True

    def __init__(self) -> None:
        self.closed = threading.Event()

    def view(self, slot: int, size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    def close(self) -> None:
        self.closed.set()


def link_and_peer(peer: str, memory: Memory | None = None) -> tuple[StreamLink, Records]:
    """A link, and the other end of its connection for a test to misbehave on."""
    near, far = socket.socketpair()
    met = Met(Records(Stream(near), *KEYS), hello(peer), SIZE, memory or own_slots(SIZE), inline=memory is None)
    link = StreamLink("test", partial(lambda found: found, met))
    wait_for(lambda: link.peer)
    return link, Records(Stream(far), *reversed(KEYS))


@pytest.mark.parametrize(
    ("peer", "memory", "envelope", "size", "what"),
    [
        ("sender", False, Envelope(Taken("t", EPOCH)), 0, "no message"),
        ("receiver", False, Envelope(FRAME, None, 5), 0, "no message"),
        ("receiver", False, Envelope(Freed(0)), 0, "not taken"),
        ("receiver", False, Envelope(Freed(SLOTS)), 0, "not taken"),
        ("sender", False, Envelope(FRAME, None, 5), 4, "wrong bytes"),
        ("sender", False, Envelope(FRAME, 0, 5), 5, "wrong bytes"),
        ("sender", False, Envelope(Abort("t", EPOCH, "link", ""), None, 5), 5, "wrong bytes"),
        ("sender", False, Envelope(Abort("t", EPOCH, "link", ""), 0, 0), 0, "wrong bytes"),
        ("sender", False, Envelope(FRAME, None, SIZE + 1), SIZE + 1, "at most"),
        ("sender", True, Envelope(FRAME, None, 0), 0, "may not"),
        ("sender", True, Envelope(FRAME, SLOTS, 5), 0, "may not"),
        ("sender", True, Envelope(FRAME, 0, SIZE + 1), 0, "may not"),
        ("sender", True, Envelope(FRAME, 0, 5), 5, "at most"),
    ],
)
def test_what_a_peer_may_not_say_breaks_the_link(
    peer: str, memory: bool, envelope: object, size: int, what: str
) -> None:
    link, other = link_and_peer(peer, Memory() if memory else None)
    other.write(msgspec.msgpack.encode(envelope), np.zeros(size, np.uint8))
    wait_for(lambda: link.failure, link)
    assert isinstance(link.failure, TransferError)
    assert what in str(link.failure)
    other.stream.close()
    link.close()


@settings(max_examples=20)
@given(st.binary(max_size=60), st.sampled_from(["sender", "receiver"]))
def test_noise_from_a_peer_breaks_the_link(noise: bytes, peer: str) -> None:
    link, other = link_and_peer(peer)
    other.write(noise)
    wait_for(lambda: link.failure, link)
    assert isinstance(link.failure, TransferError)
    other.stream.close()
    link.close()


FIELD = st.integers(0, 2**31 - 1) | st.integers(0, 9)
MESSAGES = (
    st.builds(PageFrame, st.just("t"), FIELD, FIELD, FIELD, FIELD, FIELD, FIELD)
    | st.builds(Taken, st.just("t"), FIELD)
    | st.builds(Abort, st.just("t"), FIELD, st.sampled_from(CAUSES), st.text(max_size=9))
    | st.builds(Freed, FIELD)
)
ENVELOPES = st.builds(Envelope, MESSAGES, st.none() | FIELD, FIELD | st.integers(0, SIZE))


@settings(max_examples=100)
@given(st.lists(st.tuples(ENVELOPES, st.integers(0, 9) | st.none()), max_size=12), st.sampled_from(range(3)))
def test_whatever_a_peer_says_the_link_breaks_or_what_arrives_is_whole(
    said: list[tuple[Envelope[Any], int | None]], kind: int
) -> None:
    """``None``: as many bytes as the envelope says, where those are few."""
    link, other = link_and_peer("receiver" if kind == 2 else "sender", Memory() if kind == 1 else None)
    for envelope, size in said:
        bytes_ = min(envelope.size, SIZE) if size is None else size
        with suppress(TransferError):  # it has broken
            other.write(msgspec.msgpack.encode(envelope), np.zeros(bytes_, np.uint8))
    other.stream.end_writing()
    wait_for(lambda: link.failure, link)
    assert isinstance(link.failure, TransferError)
    assert "by itself" not in str(link.failure)
    arrivals = link.receive()
    assert len(arrivals) <= len(said)
    for arrival, (envelope, _) in zip(arrivals, said, strict=False):
        assert arrival.message == envelope.message
        assert (0 if arrival.data is None else arrival.data.nbytes) == envelope.size <= SIZE
        arrival.free()
    other.stream.close()
    link.close()


def test_a_slot_is_not_written_twice() -> None:
    link, other = link_and_peer("sender", Memory())
    for _ in range(2):
        other.write(msgspec.msgpack.encode(Envelope(FRAME, 1, 5)))
    wait_for(lambda: link.failure, link)
    assert "may not" in str(link.failure)
    assert len(link.receive()) == 1
    other.stream.close()
    link.close()


def test_memory_is_given_back_once_the_sender_has_let_go() -> None:
    memory = Memory()
    link, other = link_and_peer("sender", memory)
    link.close()
    with pytest.raises(TransferError, match="closed"):
        other.read(0)
    time.sleep(0.1)
    assert not memory.closed.is_set(), "a write may be under way"
    other.stream.close()
    assert memory.closed.wait(10)


def test_memory_is_kept_when_the_sender_never_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Memory] = []
    monkeypatch.setattr(stream_link, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(stream_link, "_KEPT", kept)
    memory = Memory()
    link, other = link_and_peer("sender", memory)
    time.sleep(0.05)  # its threads wait for something to read and write
    link.close()
    wait_for(lambda: kept)
    wait_for(lambda: threading.active_count() == 1)
    assert not memory.closed.is_set()
    other.stream.close()


def test_messages_that_nobody_takes_wait_on_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_link, "MAX_WAITING", 3)
    link, other = link_and_peer("receiver")
    for number in range(20):
        other.write(msgspec.msgpack.encode(Envelope(Taken(str(number), EPOCH))))
    found: list[str] = []

    def take() -> bool:
        came = [arrival.message.transfer for arrival in link.receive()]
        assert len(came) <= 3
        found.extend(came)
        return len(found) == 20

    wait_for(take, link)
    assert found == [str(number) for number in range(20)]
    other.stream.close()
    link.close()
