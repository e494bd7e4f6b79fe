"""Records and the handshake before them: nobody without the key can add, change, repeat or leave out anything."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import PeerError, TransferError
from trimaran.pools import records
from trimaran.pools.handshake import meet
from trimaran.pools.records import Records
from trimaran.pools.seals import TAG
from trimaran.pools.stream import Stream

from .transfers import KEY, hello

KEYS = b"a" * 32, b"b" * 32
LIMIT = 1 << 16


@contextmanager
def pipe() -> Iterator[tuple[Stream, Stream]]:
    ends = [Stream(end) for end in socket.socketpair()]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


def records_on(stream: Stream, keys: tuple[bytes, ...], encrypted: bool) -> Records:
    made = Records(stream, *keys)
    if encrypted:
        made.encrypt()
    return made


def written(*parts: tuple[bytes, bytes], encrypted: bool = False) -> list[bytes]:
    """Each record as it goes over the wire."""
    found = []
    with pipe() as (near, far):
        writer = records_on(near, KEYS, encrypted)
        for head, data in parts:
            writer.write(head, np.frombuffer(data, np.uint8))
            found.append(far.socket.recv(1 << 17))
    return found


def read(wire: bytes, count: int = 1, encrypted: bool = False) -> list[tuple[bytes, bytes]]:
    with pipe() as (near, far):
        near.socket.sendall(wire)
        near.shutdown()
        reader = records_on(far, KEYS[::-1], encrypted)
        return [(head, data.tobytes()) for head, data in (reader.read(LIMIT) for _ in range(count))]


PARTS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), min_size=1, max_size=4)
either = pytest.mark.parametrize("encrypted", [False, True])


@either
@given(parts=PARTS)
def test_what_was_written_is_read(encrypted: bool, parts: list[tuple[bytes, bytes]]) -> None:
    wire = b"".join(written(*parts, encrypted=encrypted))
    assert read(wire, len(parts), encrypted) == parts


@either
@given(head=st.binary(max_size=40), data=st.binary(max_size=300), at=st.integers(0, 10**6), by=st.integers(1, 255))
def test_no_byte_may_change(encrypted: bool, head: bytes, data: bytes, at: int, by: int) -> None:
    wire = bytearray(written((head, data), encrypted=encrypted)[0])
    wire[at % len(wire)] ^= by
    with pytest.raises(TransferError):
        read(bytes(wire), 1, encrypted)


@either
def test_none_may_be_repeated_left_out_or_moved(encrypted: bool) -> None:
    one, two, three = written((b"1", b"x"), (b"2", b"y"), (b"3", b"z"), encrypted=encrypted)
    for wire, good in ((one + one, 1), (one + three, 1), (two + one, 0), (one + two + two, 2)):
        read(wire, good, encrypted)
        with pytest.raises(TransferError, match="altered"):
            read(wire, good + 1, encrypted)


def test_what_is_encrypted_cannot_be_read() -> None:
    head, data = b"a head that is long enough", b"pages of somebody's prompt" * 4
    (plain,), (secret,) = written((head, data)), written((head, data), encrypted=True)
    assert head in plain
    assert data in plain
    assert not any(part in secret for part in (head, data, data[:8]))
    assert len(secret) == len(plain) + TAG


def test_a_record_that_says_it_is_long_is_not_waited_for() -> None:
    for lengths in ((LIMIT + 1).to_bytes(4, "little") + bytes(4), bytes(4) + b"\xff" * 4):
        with pipe() as (near, far):
            near.socket.sendall(lengths + bytes(16))
            with pytest.raises(TransferError, match="at most"):
                Records(far, *KEYS).read(LIMIT)


def test_a_record_that_does_not_go_on_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "STALL_SECONDS", 0.05)
    with pipe() as (near, far):
        near.socket.sendall(b"\x01")
        with pytest.raises(TransferError, match="sent nothing in time"):
            Records(far, *KEYS).read(LIMIT)
        with pytest.raises(TransferError, match="took nothing in time"):
            Records(near, *KEYS).write(b"", np.zeros(1 << 24, np.uint8), 0.05)


def both(one: Callable[[], object], other: Callable[[], object]) -> list[object]:
    """What two sides of a meeting give or raise."""
    found: list[object] = [None, None]

    def run(number: int, work: Callable[[], object]) -> None:
        try:
            found[number] = work()
        except (PeerError, TransferError) as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def met(stream: Stream, side: str, seconds: float = 10.0) -> object:
    return meet(stream, KEY, hello(side), dialled=side == "sender", until=time.monotonic() + seconds)


def test_who_only_mirrors_what_is_said_is_not_let_in() -> None:
    with pipe() as (near, far):

        def mirror() -> None:
            while data := far.when_readable(lambda: far.socket.recv(1 << 16), time.monotonic() + 5):
                far.write([data], time.monotonic() + 5)

        def turned_away() -> object:
            try:
                return met(near, "sender")
            finally:
                near.shutdown()

        error, _ = both(turned_away, mirror)
        assert isinstance(error, PeerError)


def test_a_recorded_meeting_cannot_be_played_again() -> None:
    with pipe() as (near, far):
        said: list[bytes] = []
        write = near.write
        near.write = lambda parts, until: (said.extend(parts), write(parts, until))[1]  # type: ignore[method-assign]
        one, other = both(lambda: met(near, "sender"), lambda: met(far, "receiver"))
        assert isinstance(one, tuple)
        assert isinstance(other, tuple)
        assert one[1].role == "receiver"
    with pipe() as (near, far):
        near.socket.sendall(b"".join(said))
        with pytest.raises(PeerError, match="different pool keys"):
            met(far, "receiver")


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_noise_is_turned_away(noise: bytes) -> None:
    for side in ("sender", "receiver"):
        with pipe() as (near, far):
            far.socket.sendall(noise)
            far.end_writing()
            with pytest.raises((PeerError, TransferError)):
                met(near, side, 5.0)


def test_silence_is_turned_away_in_time() -> None:
    with pipe() as (near, _), pytest.raises(TransferError, match="sent nothing in time"):
        met(near, "receiver", 0.05)
