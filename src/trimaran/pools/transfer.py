"""What two engines say to each other when one has computed a prompt and the other goes on with it: the contract.

The *receiver* decodes. It takes pages for a prompt, less what it has already, and describes them in a ``Ticket``
(``ticket.py``). The *sender* prefills: it gets the ticket with the prompt, sends the pages as they are computed, in the
receiver's format, and commits with the first token. Guarantees, per transfer:

**Order.** The sender numbers what it sends from 0: any number of ``PageFrame``, then one ``Commit``. In each cache
group pages come in the order of their tokens. Nothing is taken out of order: a gap fails the transfer. All cache groups
go or none: the receiver writes pages as they come, which only the transfer knows of, but the sequence exists for it
from the commit on. No commit, no decode. A commit counts if it names as many frames and pages as were taken, the digest
of all their checksums and the digest of the ticket, and if every page of the ticket has come.

**Idempotence.** What has a number that was taken before is ignored; a ``Commit`` that comes again is answered as it
was. ``Abort`` and ``Refused`` may come any number of times, and cross anything on the way. A transfer that has ended
never comes back: its id is not used again, a second attempt has an id of its own.

**Who frees.** Each side its own, and never what the other may still write: senders write to memory of the link, never
to pages, so an engine's pages are written by itself alone. The receiver's pages are held by a lease from the ticket on:
the sequence owns them when it is admitted, and they are released when the transfer fails. The sender holds its pages
under a lease of its own until ``Taken``, ``Refused``, its own ``Abort`` or its deadline, whichever comes first. Both
leases end by a local timer, whatever the other side does: durations travel, times do not, so clocks need not agree. The
receiver counts from the ticket on, the sender from when it got it: the receiver never waits longer than the sender may
send.

**What failure looks like.** One end for each transfer and each side: ``TAKEN``, or ``FAILED`` with a cause, a word for
programs and metrics (``CAUSES``) and a sentence for people. The receiver refuses what is unknown, of another epoch,
expired, out of order, altered, of the wrong size or place, or would fill a page that has changed hands; the first
refusal fails the transfer for good. A broken link fails the transfers on it at once, on both sides: within a transfer
nothing reconnects. ``TransferError`` says that a transfer failed and another attempt may work; ``PeerError`` that these
two engines can never work together, which is found out when they meet (``hello.py``), at start.

**Time.** Every wait has an end: meeting, writing, reading (``link.py``), the transfer as a whole (``Ticket.lease``).
When the receiver is slow the link has no room, the sender waits with its pages and goes on computing, and the deadline
ends it.

An *epoch* is drawn at random when a process starts. Everything names the epoch of the receiver it is meant for, so what
is late for a process that has since been restarted on the same address is refused.
"""

import hashlib
import zlib
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from trimaran.base.messages import Token

PROTOCOL = 1  # raised whenever something here changes its meaning
MAX_FIRST_TOKENS = 64
MAX_TEXT = 1000  # characters of a cause

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # epochs, tags, checksums
TransferId = Annotated[str, Meta(min_length=1, max_length=200)]

Cause = Literal[
    "unknown",  # no such transfer is expected
    "epoch",  # meant for a process that is no more
    "expired",  # past its lease
    "order",  # a frame is missing
    "checksum",  # bytes are not those that were sent
    "range",  # pages outside the ticket, twice, or of a wrong size
    "pages",  # a page of the ticket has changed hands
    "commit",  # not what was sent, or not everything
    "ticket",  # another prompt, model, layout or version than the ticket says
    "busy",  # more transfers than may be open
    "link",  # the connection broke
    "cancelled",  # one side does not want it any more
    "engine",  # one side could not do its part
]
CAUSES: tuple[Cause, ...] = get_args(Cause)


class PageFrame(msgspec.Struct, frozen=True, tag="pages", array_like=True):
    """``count`` pages of a cache group, from the sequence's page ``first`` on. Their bytes go with it on the link:
    uint8 ``[count, bytes of a page]``, in the receiver's format."""

    transfer: TransferId
    epoch: Number
    number: Count
    group: Count
    first: Count
    count: Count
    checksum: Number  # ``frame_checksum`` of all the above and the bytes


class Commit(msgspec.Struct, frozen=True, tag="commit", array_like=True):
    """Everything has been sent: the receiver may decode from here."""

    transfer: TransferId
    epoch: Number
    number: Count
    pages: tuple[Count, ...]  # that were sent of each cache group
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]  # ``Digest`` of all page frames
    ticket: Annotated[bytes, Meta(min_length=32, max_length=32)]  # ``Ticket.digest``
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_FIRST_TOKENS)]  # the first of the answer
    cached: Count = 0  # prompt tokens that the sender did not have to compute

    @property
    def frames(self) -> int:
        """Page frames that came before."""
        return self.number


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """The sender gives the transfer up."""

    transfer: TransferId
    epoch: Number
    cause: Cause
    text: Annotated[str, Meta(max_length=MAX_TEXT)]


class Taken(msgspec.Struct, frozen=True, tag="taken", array_like=True):
    """The sequence is the receiver's: the sender may release its pages."""

    transfer: TransferId
    epoch: Number


class Refused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """The receiver does not want, or no longer wants, the transfer."""

    transfer: TransferId
    epoch: Number
    cause: Cause
    text: Annotated[str, Meta(max_length=MAX_TEXT)]


Frame = PageFrame | Commit | Abort  # from sender to receiver
Answer = Taken | Refused  # from receiver to sender
Message = Frame | Answer


def frame_checksum(
    transfer: str, epoch: int, number: int, group: int, first: int, count: int, data: bytes | memoryview
) -> int:
    """CRC-32 of a frame's bytes, and of where they belong: right bytes in the wrong place are as wrong.

    Finds accidents, on their way and in memory, from export to import. Against intent links have keys of their own.
    """
    place = msgspec.msgpack.encode((transfer, epoch, number, group, first, count))
    return zlib.crc32(data, zlib.crc32(place))


class Digest:
    """SHA-256 of the checksums of all page frames, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, checksum: int) -> None:
        self._hash.update(checksum.to_bytes(8, "little"))

    @property
    def value(self) -> bytes:
        return self._hash.digest()


def shortened(text: str) -> str:
    """A cause's sentence as long as it may be."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
