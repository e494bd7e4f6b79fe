"""A link over a connected socket: one thread that meets the other side and then writes, and one that reads."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from trimaran.base.errors import PeerError, TransferError, TrimaranError
from trimaran.pools.carriage import SLOTS, SlotMemory
from trimaran.pools.envelope import (
    Envelope,
    Freed,
    FromReceiver,
    FromSender,
    decode_from_receiver,
    decode_from_sender,
    encode,
)
from trimaran.pools.hello import Hello
from trimaran.pools.link import MAX_WAITING, STALL_SECONDS, Arrival, UInt8
from trimaran.pools.records import Records
from trimaran.pools.transfer import Message, PageFrame
from trimaran.pools.wake import Wake

_KEPT: list[SlotMemory] = []  # memory that senders may still write to, though they do not answer any more


class Met(NamedTuple):
    """What a meeting gives."""

    records: Records
    peer: Hello
    frame_bytes: int
    memory: SlotMemory  # this side's
    write: Callable[[int, int], None] | None = None  # the sender's ``SlotWriter.write``
    inline: bool = False  # whether pages go in the records


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
        self._outbox: deque[tuple[Message | Freed, int | None, int]] = deque()  # with slot and bytes of pages
        self._free: list[int] = []  # the sender's slots; the last was used last, and is in cache still
        self._lent: int | None = None  # the slot of the sender's next frame, once anybody has asked
        self._held: set[int] = set()  # the receiver's, by arrivals
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
            met = self._met if len(self._outbox) < MAX_WAITING and self._failure is None else None
            self._starved = met is None or not self._has_slot
            return 0 if met is None or self._starved else met.frame_bytes

    def lend(self, size: int) -> UInt8 | None:
        if not self.room():
            return None
        with self._changed:
            return self._place(size)

    def send(self, message: Message, data: UInt8 | None = None) -> bool:
        assert isinstance(message, PageFrame) == (data is not None), "pages and only pages have data"
        with self._changed:
            if self._failure is not None or self._closed:
                return True
            if self._met is None or len(self._outbox) >= MAX_WAITING or (data is not None and not self._has_slot):
                self._starved = True
                return False
            if data is None:
                self._outbox.append((message, None, 0))
            else:
                place = self._place(data.nbytes)
                if place.ctypes.data != data.ctypes.data:
                    np.copyto(place, data.reshape(-1))
                self._outbox.append((message, self._lent, data.nbytes))
                self._lent = None
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

    def _place(self, size: int) -> UInt8:
        """Where the pages of the next frame are to lie."""
        assert self._met is not None
        assert size <= self._met.frame_bytes
        if self._lent is None:
            self._lent = self._free.pop()
        return self._met.memory.view(self._lent, size)

    @property
    def _has_slot(self) -> bool:
        return bool(self._free) or self._lent is not None

    def _wait_for_sender(self, found: Met) -> None:
        """Memory that the sender writes to by itself is given back when it has let go of the connection."""
        if not found.memory.one_sided:
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
                self._free.extend(range(SLOTS))
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
                message, slot, size = self._outbox.popleft()
                self._wake_if_starved()
            if slot is None:
                found.records.write(encode(Envelope(message)))
            elif found.write is None:
                found.records.write(encode(Envelope(message, None, size)), found.memory.view(slot, size))
                self._free_slot(slot)
            else:
                found.write(slot, size)
                found.records.write(encode(Envelope(message, slot, size)))

    def _read(self, found: Met) -> None:
        inline = found.inline and found.peer.role == "sender"
        decode = decode_from_sender if found.peer.role == "sender" else decode_from_receiver
        try:
            with self._failing():
                while self._wait_for_place(inline):
                    if inline:
                        slot = self._unheld()
                        into = found.memory.view(slot, found.frame_bytes)
                        head, data = found.records.read(found.frame_bytes, into=into)
                    else:
                        slot, (head, data) = None, found.records.read(0)
                    try:
                        self._take(decode(head), slot, data, found)
                    except msgspec.MsgspecError as error:
                        raise TransferError(f"the other side sent what is no message: {error}") from None
            if found.memory.one_sided:
                found.records.stream.drain()  # until the sender has let go, or is waited for no longer
        finally:
            self._end_thread()

    def _wait_for_place(self, inline: bool) -> bool:
        """What is not taken here waits on the other side. False: the link is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_place(inline) or self._failure is not None)
            return self._failure is None

    def _has_place(self, inline: bool) -> bool:
        return len(self._inbox) < MAX_WAITING and not (inline and len(self._held) >= SLOTS)

    def _unheld(self) -> int:
        with self._changed:
            return next(slot for slot in range(SLOTS) if slot not in self._held)

    def _take(self, envelope: FromSender | FromReceiver, read: int | None, data: UInt8, found: Met) -> None:
        """What came in a record becomes an arrival; ``data`` of it is in the slot ``read``."""
        message, slot = envelope.message, envelope.slot
        if isinstance(message, Freed):
            self._free_slot(message.slot)
            return
        pages, inline = isinstance(message, PageFrame), read is not None
        unwanted = (envelope.size, slot) != (0, None) if not pages else inline and slot is not None
        if unwanted or data.nbytes != (envelope.size if inline else 0):
            raise TransferError("the other side sent a message with the wrong bytes")
        if not pages:
            self._put(Arrival(message, None, _nothing))
            return
        place = read if inline else slot
        with self._changed:
            if place is None or place >= SLOTS or place in self._held or envelope.size > found.frame_bytes:
                raise TransferError("the other side wrote where it may not")
            self._held.add(place)
        data = found.memory.view(place, envelope.size)
        self._put(Arrival(message, data, lambda: self._free_arrival(place)))

    def _put(self, arrival: Arrival) -> None:
        with self._changed:
            if not self._closed:
                self._inbox.append(arrival)
        self._wake.set()

    def _free_arrival(self, slot: int) -> None:
        """The receiver's user is done with a slot."""
        with self._changed:
            if slot not in self._held:
                return
            self._held.discard(slot)
            if self._met is not None and not self._met.inline and self._failure is None:
                self._outbox.append((Freed(slot), None, 0))
            self._changed.notify_all()

    def _free_slot(self, slot: int) -> None:
        """A slot of the sender is free again."""
        with self._changed:
            if slot in self._free or slot == self._lent or slot >= SLOTS:
                raise TransferError("the other side freed what was not taken")
            self._free.append(slot)
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
        if found.memory.one_sided:
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
            if self._met.memory not in _KEPT:
                self._met.memory.close()


def _nothing() -> None:
    pass
