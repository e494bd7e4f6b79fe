"""The ticket: which pages a receiver has taken for a prompt, and what may be written to them.

It goes from the receiver to the sender through the server, which does not look inside: bytes with a seal under the key
of the deployment, so nobody without it can make an engine compute or hold anything.
"""

import hashlib
import hmac
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from trimaran.base.errors import TransferError
from trimaran.pools.key import PoolKey
from trimaran.pools.layout import LayoutData
from trimaran.pools.transfer import Count, Number, TransferId

TICKET_VERSION = 1
MAX_TICKET_BYTES = 8 << 20
MAX_GROUPS = 64
MAX_ADDRESSES = 8
_SEAL = 32  # bytes
_PURPOSE = b"trimaran ticket"

Digest32 = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a receiver can be reached by a transport."""

    transport: Annotated[str, Meta(min_length=1, max_length=32)]
    address: Annotated[str, Meta(min_length=1, max_length=300)]


class TicketPages(msgspec.Struct, frozen=True, array_like=True):
    """The receiver's pages of one cache group. ``pages[i]`` becomes the sequence's page ``first + i``; before it the
    receiver has what it reads."""

    first: Count
    pages: list[Count]
    tags: list[Number]  # what the pages had when the ticket was made

    @property
    def end(self) -> int:
        """The sequence's page after the last."""
        return self.first + len(self.pages)


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the sender needs to know, and what the receiver will hold it to."""

    version: int
    transfer: TransferId  # one attempt; the router makes it up, and both sides cancel by it
    epoch: Number  # of the receiver
    model: Annotated[str, Meta(min_length=1, max_length=200)]  # digest
    layout: LayoutData  # of the receiver's pages
    tokens: Annotated[int, Meta(ge=1, lt=1 << 31)]  # of the prompt: what the pages hold in the end
    token_digest: Digest32  # ``digest_of_tokens`` of the prompt
    groups: Annotated[list[TicketPages], Meta(min_length=1, max_length=MAX_GROUPS)]
    lease: Annotated[float, Meta(gt=0, le=86400)]  # seconds, from when one has the ticket
    addresses: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)]  # the best first

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything in it."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()

    def seal(self, key: PoolKey) -> bytes:
        """The ticket as it travels."""
        return sealed(msgspec.msgpack.encode(self), key)


def sealed(body: bytes, key: PoolKey) -> bytes:
    """What was encoded, with its seal before it."""
    return key.mac(_PURPOSE, body) + body


def open_ticket(data: bytes, key: PoolKey) -> Ticket:
    """The ticket that ``seal`` made; raises ``TransferError`` when it was not made with this key, or is malformed."""
    if len(data) > MAX_TICKET_BYTES:
        raise TransferError(f"a ticket of {len(data)} bytes; at most {MAX_TICKET_BYTES} are read")
    body = data[_SEAL:]
    if not hmac.compare_digest(data[:_SEAL], key.mac(_PURPOSE, body)):
        raise TransferError("a ticket whose seal is wrong: it was altered, or made with the key of another deployment")
    try:
        version = msgspec.msgpack.decode(body, type=_Versioned).version
        if version != TICKET_VERSION:
            raise TransferError(f"a ticket of version {version}; this engine reads version {TICKET_VERSION}")
        ticket = msgspec.msgpack.decode(body, type=Ticket)
    except msgspec.MsgspecError as error:
        raise TransferError(f"a malformed ticket: {error}") from None
    if any(len(group.pages) != len(group.tags) for group in ticket.groups):
        raise TransferError("a malformed ticket: it has not as many tags as pages")
    return ticket


def digest_of_tokens(tokens: npt.ArrayLike) -> bytes:
    """SHA-256 of token ids, as 32-bit little-endian numbers."""
    return hashlib.sha256(np.asarray(tokens).astype("<i4").tobytes()).digest()


class _Versioned(msgspec.Struct):
    version: int
