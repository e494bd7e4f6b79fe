"""A link over a connected socket: one thread that meets the other side and then writes, and one that reads."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from trimaran.base.errors import PeerError, TransferError, TrimaranError
from trimaran.pools.carriage import SLOTS, SlotMemory, SlotWriter
from trimaran.pools.hello import Hello
from trimaran.pools.link import MAX_WAITING, STALL_SECONDS, Arrival, UInt8
from trimaran.pools.records import Records
from trimaran.pools.transfer import Answer, Count, Frame, Message, PageFrame
from trimaran.pools.wake import Wake

_NO_DATA = np.zeros(0, np.uint8)
_KEPT: list[SlotMemory] = []  # memory that senders may still write to, though they do not answer any more


class Met(NamedTuple):
    """What a meeting gives. Where pages do not go in the records the sender has a ``writer``, the receiver a
    ``memory``."""

    records: Records
    peer: Hello
    frame_bytes: int
    writer: SlotWriter | None = None
    memory: SlotMemory | None = None


class StreamLink:
    """See ``Link``. ``meet`` runs on the link's thread: it connects, or takes what was accepted."""

    def __init__(self, name: str, meet: Callable[[], Met], met: Callable[["StreamLink"], None] | None = None) -> None:
        """``met`` is called on the link's thread when the meeting is over, well or not."""
        self._wake = Wake()
        self._changed = threading.Condition()  # guards all that follows
        self._met: Met | None = None
        self._failure: PeerError | TransferError | None = None
        self._closed = False
        self._inbox: deque[Arrival] = deque()
        self._outbox: deque[tuple[Message | Freed, int | None, UInt8]] = deque()
        self._slots: set[int] = set()  # the sender's: free; the receiver's: held by arrivals
        self._starved = False  # the user was told that there is no room
        self._threads = 1
        threading.Thread(target=self._run, args=(meet, met), name=f"link {name}", daemon=True).start()

    @property
    def peer(self) -> Hello | None:
        with self._changed:
            return None if self._met is None else self._met.peer

    @property
    def failure(self) -> PeerError | TransferError | None:
        with self._changed:
            return self._failure

    def room(self) -> int:
        with self._changed:
            free = self._met is not None and self._slots and len(self._outbox) < MAX_WAITING and self._failure is None
            self._starved = not free
            return self._met.frame_bytes if free and self._met is not None else 0

    def send(self, message: Message, data: UInt8 | None = None) -> bool:
        assert isinstance(message, PageFrame) == (data is not None), "pages and only pages have data"
        with self._changed:
            if self._failure is not None or self._closed:
                return True
            if self._met is None or len(self._outbox) >= MAX_WAITING or (data is not None and not self._slots):
                self._starved = True
                return False
            if data is None:
                self._outbox.append((message, None, _NO_DATA))
            else:
                assert data.nbytes <= self._met.frame_bytes
                self._outbox.append((message, self._slots.pop(), data.reshape(-1)))
            self._changed.notify_all()
            return True

    def receive(self) -> list[Arrival]:
        self._wake.clear()
        with self._changed:
            arrivals = list(self._inbox)
            self._inbox.clear()
            self._changed.notify_all()
            return arrivals

    def fileno(self) -> int:
        return self._wake.fileno()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._inbox.clear()
        self._fail(TransferError("the link was closed"))
        self._wake.close()

    def _run(self, meet: Callable[[], Met], met: Callable[["StreamLink"], None] | None) -> None:
        try:
            with self._failing():
                self._begin(meet())
            if met is not None:
                met(self)
            if self._met is not None:
                with self._failing():
                    self._write_all(self._met)
                self._wait_for_sender(self._met)
        finally:
            self._end_thread()

    def _wait_for_sender(self, found: Met) -> None:
        """Memory that the sender writes to by itself is given back when it has let go of the connection."""
        if found.memory is None or not found.memory.one_sided:
            return
        with self._changed:
            gone = self._changed.wait_for(lambda: self._threads == 1, STALL_SECONDS)
        if not gone:
            _KEPT.append(found.memory)  # for ever: it cannot be known when it would be safe to give back
            found.records.stream.shutdown()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever ends a thread fails the link: the world's errors with their text, our own also with a traceback."""
        try:
            yield
        except (TrimaranError, OSError) as error:
            self._fail(error)
        except BaseException as error:
            self._fail(TransferError(f"the link failed by itself: {error!r}"))
            raise

    def _begin(self, found: Met) -> None:
        with self._changed:
            self._met = found
            self._threads += 1
            if found.peer.role == "receiver":
                self._slots = set(range(SLOTS))
            if self._closed:
                self._hang_up(found)
        threading.Thread(target=self._read, args=(found,), name="link reads", daemon=True).start()
        self._wake.set()

    def _write_all(self, found: Met) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._failure is not None)
                if self._failure is not None:
                    return
                message, slot, data = self._outbox.popleft()
                self._wake_if_starved()
            if slot is None:
                found.records.write(_ENCODER.encode(Envelope(message)))
            elif found.writer is None:
                found.records.write(_ENCODER.encode(Envelope(message, None, data.nbytes)), data)
                self._free_slot(slot)
            else:
                found.writer.write(slot, data)
                found.records.write(_ENCODER.encode(Envelope(message, slot, data.nbytes)))
            del data

    def _read(self, found: Met) -> None:
        inline = found.memory is None and found.peer.role == "sender"
        decode = _FROM_SENDER.decode if found.peer.role == "sender" else _FROM_RECEIVER.decode
        try:
            with self._failing():
                while self._wait_for_place(inline):
                    head, data = found.records.read(found.frame_bytes if inline else 0)
                    try:
                        self._take(decode(head), data, found)
                    except msgspec.MsgspecError as error:
                        raise TransferError(f"the other side sent what is no message: {error}") from None
            if found.memory is not None and found.memory.one_sided:
                found.records.stream.drain()  # until the sender has let go, or is waited for no longer
        finally:
            self._end_thread()

    def _wait_for_place(self, inline: bool) -> bool:
        """What is not taken here waits on the other side. False: the link is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_place(inline) or self._failure is not None)
            return self._failure is None

    def _has_place(self, inline: bool) -> bool:
        return len(self._inbox) < MAX_WAITING and not (inline and len(self._slots) >= SLOTS)

    def _take(self, envelope: "Envelope[Frame] | Envelope[Answer | Freed]", data: UInt8, found: Met) -> None:
        """What came in a record becomes an arrival."""
        message, slot = envelope.message, envelope.slot
        if isinstance(message, Freed):
            self._free_slot(message.slot)
            return
        pages = isinstance(message, PageFrame)
        if (envelope.size if slot is None else 0) != data.nbytes or (not pages and (slot is not None or envelope.size)):
            raise TransferError("the other side sent a message with the wrong bytes")
        if not pages:
            self._put(Arrival(message, None, _nothing))
            return
        with self._changed:
            if found.memory is None:
                slot = next(each for each in range(SLOTS) if each not in self._slots)
            elif slot is None or slot >= SLOTS or slot in self._slots or envelope.size > found.frame_bytes:
                raise TransferError("the other side wrote where it may not")
            self._slots.add(slot)
        if found.memory is not None:
            data = found.memory.view(slot, envelope.size)
        self._put(Arrival(message, data, lambda: self._free_arrival(slot)))

    def _put(self, arrival: Arrival) -> None:
        with self._changed:
            if not self._closed:
                self._inbox.append(arrival)
        self._wake.set()

    def _free_arrival(self, slot: int) -> None:
        """The receiver's user is done with a slot."""
        with self._changed:
            if slot not in self._slots:
                return
            self._slots.discard(slot)
            if self._met is not None and self._met.memory is not None and self._failure is None:
                self._outbox.append((Freed(slot), None, _NO_DATA))
            self._changed.notify_all()

    def _free_slot(self, slot: int) -> None:
        """A slot of the sender is free again."""
        with self._changed:
            if slot in self._slots or slot >= SLOTS:
                raise TransferError("the other side freed what was not taken")
            self._slots.add(slot)
            self._wake_if_starved()

    def _wake_if_starved(self) -> None:
        if self._starved:
            self._starved = False
            self._wake.set()

    def _fail(self, error: TrimaranError | OSError) -> None:
        """The link is over; the first cause counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error if isinstance(error, PeerError) else TransferError(str(error))
            self._outbox.clear()
            if self._met is not None:
                self._hang_up(self._met)
            self._changed.notify_all()
        self._wake.set()

    def _hang_up(self, found: Met) -> None:
        """Makes both threads end; where the sender writes to our memory by itself, not before it has let go."""
        if found.memory is not None and found.memory.one_sided:
            found.records.stream.end_writing()
        else:
            found.records.stream.shutdown()

    def _end_thread(self) -> None:
        """The last thread frees what both have used."""
        with self._changed:
            self._threads -= 1
            last = self._threads == 0
            self._changed.notify_all()
        if last and self._met is not None:
            self._met.records.stream.close()
            if self._met.writer is not None:
                self._met.writer.close()
            if self._met.memory is not None and self._met.memory not in _KEPT:
                self._met.memory.close()


class Freed(msgspec.Struct, frozen=True, tag="freed", array_like=True):
    """The receiver has taken out what was in a slot."""

    slot: Count


M = TypeVar("M")


class Envelope(msgspec.Struct, Generic[M], frozen=True, array_like=True):
    """The head of a record. ``size`` bytes of pages are in the record, or in ``slot`` of the receiver's memory."""

    message: M
    slot: Count | None = None
    size: Count = 0


_ENCODER = msgspec.msgpack.Encoder()
_FROM_SENDER = msgspec.msgpack.Decoder(Envelope[Frame])
_FROM_RECEIVER = msgspec.msgpack.Decoder(Envelope[Answer | Freed])


def _nothing() -> None:
    pass
