"""Transports whose links begin on a socket: listening, connecting and meeting, on threads of their own."""

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from trimaran.base.errors import PeerError
from trimaran.pools.carriage import SlotMemory, SlotWriter, own_slots
from trimaran.pools.handshake import meet
from trimaran.pools.hello import Hello
from trimaran.pools.key import PoolKey
from trimaran.pools.link import MEET_SECONDS, Link
from trimaran.pools.records import Records
from trimaran.pools.seals import AES
from trimaran.pools.stream import Stream
from trimaran.pools.stream_link import Met, StreamLink
from trimaran.pools.wake import Wake

MAX_MEETING = 16  # connections that have not proved themselves yet
MAX_LINKS = 256  # of one listener

_log = logging.getLogger(__name__)


class Meeting(NamedTuple):
    """Two sides that have met and have to agree on how pages go, ``until`` then at the latest."""

    records: Records
    peer: Hello
    frame_bytes: int
    until: float


class Carrier(NamedTuple):
    """How both sides come to their ends of the receiver's memory. Either raises ``TransferError``."""

    give: Callable[[Meeting], SlotMemory]
    get: Callable[[Meeting], SlotWriter]


class SocketTransport(ABC):
    """See ``Transport``. What kinds of it differ in is where sockets come from and how pages are carried."""

    name: str
    carrier: Carrier | None = None  # None: pages go in the records
    encrypts = False  # whether others could read what is under way

    def __init__(self, key: PoolKey) -> None:
        self._key = key

    def listen(self, hello: Hello, address: str | None = None) -> "SocketListener":
        """See ``Transport``."""
        listening, where = self.open_listening(address)
        return SocketListener(self, hello, listening, where)

    def connect(self, address: str, hello: Hello) -> Link:
        """See ``Transport``."""
        return StreamLink(f"{self.name} to {address}", partial(self._dial, address, hello))

    def meet_accepted(self, accepted: socket.socket, hello: Hello) -> Met:
        """The receiver's meeting, on the link's thread. Raises as ``meet`` does."""
        return self._meet(accepted, hello, dialled=False, until=time.monotonic() + MEET_SECONDS)

    def _dial(self, address: str, hello: Hello) -> Met:
        until = time.monotonic() + MEET_SECONDS
        return self._meet(self.open_connection(address, MEET_SECONDS), hello, dialled=True, until=until)

    def _meet(self, connected: socket.socket, hello: Hello, *, dialled: bool, until: float) -> Met:
        stream = Stream(connected)
        try:
            self.prepare(connected)
            records, peer = meet(stream, self._key, hello, dialled=dialled, until=until)
            if self.encrypts and AES in hello.ciphers and AES in peer.ciphers:
                records.encrypt()
            elif self.encrypts:
                self.check_unencrypted(connected, peer)
            frame_bytes = peer.frame_bytes if dialled else hello.frame_bytes
            if self.carrier is None:
                return Met(records, peer, frame_bytes, own_slots(frame_bytes), inline=True)
            meeting = Meeting(records, peer, frame_bytes, until)
            if dialled:
                writer = self.carrier.get(meeting)
                return Met(records, peer, frame_bytes, writer, writer.write)
            return Met(records, peer, frame_bytes, self.carrier.give(meeting))
        except BaseException:
            stream.close()
            raise

    @abstractmethod
    def open_listening(self, address: str | None) -> tuple[socket.socket, str]:
        """A listening socket and where it can be reached; raises ``ConfigError``."""

    @abstractmethod
    def open_connection(self, address: str, seconds: float) -> socket.socket:
        """A connected socket; raises ``TransferError``, within ``seconds``."""

    def check_unencrypted(self, connected: socket.socket, peer: Hello) -> None:
        """Says so, where it matters, when what should be encrypted cannot be."""
        if not ipaddress.ip_address(connected.getpeername()[0].partition("%")[0]).is_loopback:
            _log.warning(
                "pages go to and from %s unencrypted, because one side has no cryptography 47 or newer: "
                "pip install 'trimaran[encryption]' on both",
                peer.name,
            )

    def prepare(self, connected: socket.socket) -> None:  # noqa: B027  # some have nothing to prepare
        """Sets a fresh connection up; raises ``PeerError`` when whoever is at the other end may not be there, whatever
        key it has."""


class SocketListener:
    """See ``Listener``."""

    def __init__(self, transport: SocketTransport, hello: Hello, listening: socket.socket, address: str) -> None:
        self.address = address
        self._transport = transport
        self._hello = hello
        self._listening = listening
        self._wake = Wake()
        self._lock = threading.Lock()
        self._meeting: set[StreamLink] = set()
        self._met: list[StreamLink] = []
        self._links: list[StreamLink] = []  # that were given out and may be alive
        self._rejected = 0
        self._closed = threading.Event()
        listening.setblocking(True)
        threading.Thread(target=self._accept_all, name=f"accept {transport.name}", daemon=True).start()

    @property
    def rejected(self) -> int:
        return self._rejected

    def accept(self) -> list[Link]:
        self._wake.clear()
        with self._lock:
            met, self._met = self._met, []
            self._links = [link for link in self._links if link.failure is None] + met
        return list(met)

    def fileno(self) -> int:
        return self._wake.fileno()

    def close(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            left = [*self._meeting, *self._met]
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        for link in left:
            link.close()
        self._wake.close()

    def _accept_all(self) -> None:
        with self._listening:
            while not self._closed.is_set():
                try:
                    accepted, _ = self._listening.accept()
                except OSError:  # closed; or out of descriptors, which may pass
                    self._closed.wait(0.1)
                else:
                    self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        with self._lock:
            self._links = [link for link in self._links if link.failure is None]
            open_links = len(self._links) + len(self._met) + len(self._meeting)
            if self._closed.is_set() or len(self._meeting) >= MAX_MEETING or open_links >= MAX_LINKS:
                self._rejected += 1
                accepted.close()
                return
            name = f"{self._transport.name} at {self.address}"
            met = partial(self._transport.meet_accepted, accepted, self._hello)
            self._meeting.add(StreamLink(name, met, self._after_meeting))

    def _after_meeting(self, link: StreamLink) -> None:
        """On the link's thread."""
        with self._lock:
            self._meeting.discard(link)
            # One that has broken since is given out too: what had come over it until then may have begun something.
            keep = link.peer is not None and not self._closed.is_set()
            if keep:
                self._met.append(link)
            else:
                self._rejected += 1
        if keep:
            self._wake.set()
            return
        if isinstance(failure := link.failure, PeerError):
            _log.warning("a connection to %s was turned down: %s", self.address, failure)
        link.close()
