"""Links: what carries messages and pages between two engines, and what every kind of it guarantees.

A link joins one sender process and one receiver process; any number of transfers share it. It never blocks whoever
uses it: connecting, authentication and, where the kind needs it, reading and writing happen on threads of its own.

* Messages arrive whole, unaltered, once, and in order; or the link breaks, for good, with the cause in ``failure``. A
  broken link is closed and another one is opened; nothing is resumed.
* Before the first message both sides have proved that they have the deployment's key, and have found that they can work
  together (``hello.py``). Where they cannot, ``failure`` is a ``PeerError`` on both sides.
* What is under way is bounded by ``room``. What was received and not freed counts.
* Nothing of a link outlives its process, however that ends: no file, no shared memory, no lock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import PeerError, TransferError
from trimaran.pools.hello import Hello
from trimaran.pools.transfer import Message

UInt8 = npt.NDArray[np.uint8]

MEET_SECONDS = 10.0  # to connect, authenticate and greet
STALL_SECONDS = 30.0  # a link whose peer takes nothing for so long, though there is something for it, breaks
MAX_MESSAGE_BYTES = 1 << 16  # of a message without its pages
MAX_WAITING = 1024  # messages that may wait on a link, each way


@dataclass(frozen=True)
class Arrival:
    """A message that came. Of a ``PageFrame``, ``data`` uint8 ``[bytes]`` is its pages, valid until ``free`` is called,
    which must happen once, soon: it makes room for the sender."""

    message: Message
    data: UInt8 | None
    free: Callable[[], None]
    at: float = field(default_factory=time.monotonic)  # when it came, which may be long before it is received


class Link(Protocol):
    """One end. Not thread-safe: one user."""

    @property
    def peer(self) -> Hello | None:
        """Who is at the other end; None until they have met."""
        ...

    @property
    def failure(self) -> PeerError | TransferError | None:
        """Why the link can no longer be used; what arrived before can still be received."""
        ...

    def room(self) -> int:
        """Bytes of pages that ``send`` takes now; 0 before the ends have met and after a failure."""
        ...

    def lend(self, size: int) -> UInt8 | None:
        """Memory for the ``size`` bytes of pages of the next frame, of at most ``room``, from which ``send`` need not
        copy them; None where there is no room. Whatever was lent before and not sent is the same memory."""
        ...

    def send(self, message: Message, data: UInt8 | None = None) -> bool:
        """Takes a message, with its pages if it is a ``PageFrame``; False where there is no room for them now, or too
        many messages wait. What ``lend`` gave must not be written any more. After a failure everything is taken and
        dropped."""
        ...

    def receive(self) -> list[Arrival]:
        """What has come, in order; never waits."""
        ...

    def fileno(self) -> int:
        """Readable when ``receive`` or ``peer`` may have something new, when the link has failed, and when there is
        room again after ``send`` gave False or ``room`` had too little. To be polled together with whatever else the
        user waits for."""
        ...

    def close(self) -> None:
        """Ends the link and frees all that belongs to it; the peer's end fails. Idempotent; waits for nothing."""
        ...


class Listener(Protocol):
    """Where senders connect to."""

    @property
    def address(self) -> str:
        """What ``Transport.connect`` of a sender takes."""
        ...

    def accept(self) -> list[Link]:
        """Links of senders that have proved themselves and fit; those that did not are closed, and counted."""
        ...

    @property
    def rejected(self) -> int:
        """Connections that failed to prove themselves, did not fit, or were too many or too slow."""
        ...

    def fileno(self) -> int:
        """Readable when ``accept`` may have something new."""
        ...

    def close(self) -> None:
        """Ends listening, not the links; idempotent."""
        ...


class Transport(Protocol):
    """A kind of link."""

    name: str

    def listen(self, hello: Hello, address: str | None = None) -> Listener:
        """Raises ``ConfigError`` when ``address`` cannot be had. None: any that is only reachable from this host."""
        ...

    def connect(self, address: str, hello: Hello) -> Link:
        """A link that is being made: ``peer`` or ``failure`` tells when it is done, within ``MEET_SECONDS``."""
        ...
