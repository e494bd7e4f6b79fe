"""What every kind of link guarantees."""

import socket
import threading
import time

import numpy as np
import pytest

from trimaran.base.errors import PeerError, TransferError
from trimaran.pools import meeting
from trimaran.pools.carriage import SLOTS
from trimaran.pools.key import PoolKey
from trimaran.pools.layout import layout_data
from trimaran.pools.meeting import SocketListener
from trimaran.pools.stream_link import StreamLink
from trimaran.pools.transfer import Abort, PageFrame, Refused, Taken

from .links import NAMES, pair, pump, receive, transport, wait_for
from .transfers import EPOCH, FRAME_BYTES, LAYOUT, Receiver, hello, sending, ticket, whole

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.parametrize("name", NAMES)]


def frame(number: int, size: int) -> tuple[PageFrame, np.ndarray]:
    data = np.random.default_rng(number).integers(0, 256, size).astype(np.uint8)
    return PageFrame("t", EPOCH, number, 0, number, 1, 0), data


def test_messages_and_pages_arrive_whole_and_in_order(name: str) -> None:
    sizes = [1, 17, FRAME_BYTES, 4096, FRAME_BYTES, FRAME_BYTES - 1, 100, 3] * 3
    sent = [frame(number, size) for number, size in enumerate(sizes)]
    sent.insert(5, (Abort("u", EPOCH, "cancelled", "enough"), None))
    came = []
    with pair(name) as (sender, receiver):
        pump(sender, receiver, sent, lambda message, data: came.append((message, data is None or data.copy())))
        for answer in (Taken("t", EPOCH), Refused("u", EPOCH, "order", "x" * 1000)):
            assert receiver.send(answer)
        answers = [arrival.message for arrival in receive(sender, 2)]
    assert answers == [Taken("t", EPOCH), Refused("u", EPOCH, "order", "x" * 1000)]
    for (message, data), (expected, bytes_) in zip(came, sent, strict=True):
        assert message == expected
        assert bytes_ is None or data.tobytes() == bytes_.tobytes()


def test_a_whole_transfer_goes_over_it(name: str) -> None:
    with pair(name) as (sender, receiver):
        of, engine = ticket(200), Receiver()
        engine.expect(of)
        machine = sending(of)
        assert sender.peer is not None
        assert sender.peer.epoch == of.epoch
        pump(sender, receiver, whole(machine), engine.take)
        assert engine.right(of)
        assert receiver.send(engine.admitted[0].answer)
        (answer,) = receive(sender, 1)
        machine.answer(answer.message)
        assert machine.over
        assert machine.failure is None


def test_what_is_under_way_is_bounded_and_room_comes_back(name: str) -> None:
    with pair(name) as (sender, receiver):
        sent, until = 0, 0.0
        while sent < 1000 and time.monotonic() < (until or time.monotonic() + 1):
            if sender.room():
                assert sender.room() == FRAME_BYTES
                assert sender.send(*frame(sent, FRAME_BYTES))
                sent, until = sent + 1, time.monotonic() + 0.3
        assert SLOTS <= sent < 1000
        assert not sender.send(*frame(sent, FRAME_BYTES)), "the receiver has freed nothing"
        came = [arrival for arrival in receive(receiver, SLOTS) if arrival.data is not None]
        assert len(came) == SLOTS, "and takes no more than it may hold"
        for number, arrival in enumerate(came):
            assert arrival.data is not None
            assert arrival.data.tobytes() == frame(number, FRAME_BYTES)[1].tobytes()
            arrival.free()
        left = sent - SLOTS
        while left:
            for arrival in receive(receiver, 1):
                arrival.free()
                left -= 1
        wait_for(sender.room, sender)


def test_pages_that_were_written_where_the_link_said_arrive_as_others_do(name: str) -> None:
    with pair(name) as (sender, receiver):
        wait_for(sender.room, sender)
        for number in range(2 * SLOTS):
            message, data = frame(number, FRAME_BYTES - number)
            assert sender.lend(3) is not None, "taken back by the next"
            place = sender.lend(data.nbytes)
            assert place is not None
            place[:] = data
            assert sender.send(message, place.reshape(1, -1) if number % 3 else data)
            (arrival,) = receive(receiver, 1)
            assert arrival.data is not None
            assert arrival.data.tobytes() == data.tobytes()
            arrival.free()
            wait_for(sender.room, sender)
    assert sender.lend(1) is None


def test_either_end_notices_that_the_other_has_gone(name: str) -> None:
    for closes in (0, 1):
        with pair(name) as ends:
            ends[0].send(*frame(0, 100))
            (arrival,) = receive(ends[1], 1)
            ends[closes].close()
            other = ends[1 - closes]
            wait_for(lambda: other.failure, other)  # noqa: B023
            assert isinstance(other.failure, TransferError)
            assert other.send(Taken("t", EPOCH)), "taken and dropped"
            assert other.room() == 0
            assert arrival.data is not None
            assert arrival.data.tobytes() == frame(0, 100)[1].tobytes(), "what has come stays"
            arrival.free()
            ends[closes].close()


def test_another_key_is_refused_on_both_sides(name: str) -> None:
    listener = transport(name).listen(hello("receiver"))
    other = transport(name, PoolKey("of another deployment, " * 2)).connect(listener.address, hello("sender"))
    wait_for(lambda: other.failure and listener.rejected)
    assert isinstance(other.failure, PeerError)
    assert "different pool keys" in str(other.failure)
    assert listener.accept() == []
    other.close()
    listener.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "sha256:other"}, ["model digest", "sha256:other", "sha256:model"]),
        ({"layout": layout_data(LAYOUT) | {"page_size": 32}}, ["page size", "16", "32"]),
        ({"layout": layout_data(LAYOUT) | {"version": 9}}, ["version", "9"]),
        ({"role": "receiver"}, ["both would be the receiver"]),
        ({"transports": ["pigeon"]}, ["pigeon", "tcp"]),
    ],
)
def test_who_cannot_work_together_is_told_so_at_once(name: str, changes: dict[str, object], said: list[str]) -> None:
    listener = transport(name).listen(hello("receiver"))
    other = transport(name).connect(listener.address, hello("sender", **changes))
    wait_for(lambda: other.failure and listener.rejected)
    assert isinstance(other.failure, PeerError)
    for part in [*said, "the sender", "the receiver"] if "role" not in changes else said:
        assert part in str(other.failure)
    other.close()
    listener.close()


def test_another_protocol_is_refused_with_both_numbers(name: str) -> None:
    listener = transport(name).listen(hello("receiver", protocol=7))
    other = transport(name).connect(listener.address, hello("sender"))
    wait_for(lambda: other.failure and listener.rejected)
    assert "protocol is 7, ours is 1" in str(other.failure)
    other.close()
    listener.close()


def test_a_link_that_breaks_before_it_is_accepted_is_given_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had come over it may have begun something that has to end."""
    after_meeting = SocketListener._after_meeting

    def late(listener: SocketListener, link: StreamLink) -> None:
        wait_for(lambda: link.failure)
        after_meeting(listener, link)

    monkeypatch.setattr(SocketListener, "_after_meeting", late)
    listener = transport(name).listen(hello("receiver"))
    sender = transport(name).connect(listener.address, hello("sender"))
    wait_for(lambda: sender.peer)
    sender.close()
    (receiver,) = wait_for(listener.accept, listener)
    assert isinstance(receiver.failure, TransferError)
    assert listener.rejected == 0
    for each in (receiver, listener):
        each.close()


def test_who_cannot_encrypt_is_not_left_out(name: str) -> None:
    listener = transport(name).listen(hello("receiver"))
    sender = transport(name).connect(listener.address, hello("sender", ciphers=[]))
    (receiver,) = wait_for(listener.accept, listener)
    wait_for(lambda: sender.peer)
    sender.send(*frame(0, 100))
    (arrival,) = receive(receiver, 1)
    assert arrival.data is not None
    assert arrival.data.tobytes() == frame(0, 100)[1].tobytes()
    for each in (sender, receiver, listener):
        each.close()


def test_strangers_get_nothing_and_stop_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEET_SECONDS", 0.3)
    listener = transport(name).listen(hello("receiver"))
    strangers = [_raw(listener.address) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 10)
    strangers[1].sendall(b"trimaran pools\x01\x00" + bytes(32) + bytes(32))
    wait_for(lambda: listener.rejected >= 3)  # the third said nothing, and its time is over
    monkeypatch.undo()
    sender = transport(name).connect(listener.address, hello("sender"))
    (link,) = wait_for(listener.accept, listener)
    for each in (*strangers, sender, link, listener):
        each.close()


def _raw(address: str) -> socket.socket:
    if address.startswith("@"):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.connect("\0" + address[1:])
        return stranger
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def test_too_many_links_are_turned_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MAX_LINKS", 2)
    listener = transport(name).listen(hello("receiver"))
    ends = []
    for _ in range(2):
        ends.append(transport(name).connect(listener.address, hello("sender")))
        ends += wait_for(listener.accept, listener)
    third = transport(name).connect(listener.address, hello("sender"))
    wait_for(lambda: third.failure)
    assert listener.rejected == 1
    for each in ends[:2]:
        each.close()
    wait_for(lambda: ends[1].failure)
    fourth = transport(name).connect(listener.address, hello("sender"))
    ends += wait_for(listener.accept, listener)
    for each in (*ends, third, fourth, listener):
        each.close()


def test_nobody_there(name: str) -> None:
    listener = transport(name).listen(hello("receiver"))
    address = listener.address
    listener.close()
    wait_for(lambda: threading.active_count() == 1)
    link = transport(name).connect(address, hello("sender"))
    wait_for(lambda: link.failure, link)
    assert address in str(link.failure)
    link.close()
